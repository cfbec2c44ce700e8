"""Submitted functions on a real Slurm of two nodes with four fake GPUs each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pollux_slurm
from pollux_slurm.errors import FunctionError, JobFailedError, PolluxError, SlurmCommandError
from pollux_slurm.functions.job import SubmittedJob
from pollux_slurm.model import Allocation, JobShape, JobState
from tests.launch.submit_directory import SubmitDirectory, make_submit_directory
from tests.waiting import wait_until

TIMEOUT_S = 300.0
Submit = Callable[..., SubmittedJob[Any]]


@pytest.fixture
def folder(
    two_node_sandbox: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SubmitDirectory]:
    """A working directory, with the environment of a user of the cluster."""
    made = make_submit_directory(tmp_path / "100 % mine", two_node_sandbox)
    for name in set(os.environ) - set(made.environ):
        monkeypatch.delenv(name)
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(made.folder)
    yield made
    for job_id in made.jobs:
        made.slurm.cancel(job_id)


@pytest.fixture
def submit(folder: SubmitDirectory) -> Submit:
    def submit_there(function: Any, *args: Any, **options: Any) -> SubmittedJob[Any]:
        job: SubmittedJob[Any] = pollux_slurm.submit(function, *args, **options)
        folder.jobs.append(job.job_id)
        return job

    return submit_there


def wait_for_go(text: str) -> tuple[str, int, int]:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    run = os.environ["POLLUX_RESTART_COUNT"]
    print(f"run {run} rank {rank}", flush=True)
    Path(f"{run}.{rank}.json").write_text("{}")
    while not Path("go").exists():
        time.sleep(0.05)
    return text, rank, size


def test_that_a_moved_function_is_called_again_and_its_values_come_back(
    folder: SubmitDirectory, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLLUX_STORE_URL", f"sqlite:///{folder.folder}/pollux.db".replace("%", "%25"))
    done = folder.run(sys.executable, "-m", "pollux_slurm", "db", "init", environ=dict(os.environ))
    assert done.returncode == 0, done.stderr
    job = submit(wait_for_go, "it's\nme", max_gpus=4, time="10", cpus_per_gpu=1)
    folder.ranks(0, 1)
    assert job.state == "RUNNING"
    assert not job.done()
    assert f"job {job.job_id}" in job.explain()
    assert job.record() is None  # no daemon runs here
    folder.slurm.requeue_hold(job.job_id)
    folder.wait(job.job_id, JobState.PENDING)
    assert not job.done()
    folder.slurm.reshape(job.job_id, JobShape.of(Allocation.of({"n0": 1, "n1": 2})))
    folder.slurm.release(job.job_id)
    folder.ranks(1, 3)
    (folder.folder / "go").touch()
    assert job.result(TIMEOUT_S) == ("it's\nme", 0, 3)
    assert job.results() == [("it's\nme", rank, 3) for rank in range(3)]
    assert job.wait() == "COMPLETED"
    # Lines of several ranks may run into one another.
    printed = re.findall(r"run \d rank \d", job.stdout())
    assert printed[0] == "run 0 rank 0"
    assert sorted(printed[1:]) == [f"run 1 rank {rank}" for rank in range(3)]
    assert SubmittedJob.load(job.folder).result()[2] == 3
    submitted = folder.slurm.read_job(job.job_id)
    assert submitted is not None
    assert submitted.name == "wait_for_go"
    assert "#SBATCH --requeue" in job.script


def test_that_a_function_in_place_is_called_in_its_wing_and_again_after_its_loss(
    folder: SubmitDirectory, submit: Submit
) -> None:
    job = submit(wait_for_go, "here", min_gpus=2, time="10", in_place=True)
    folder.ranks(0, 2)
    (wing,) = folder.job(job.job_id).wings
    assert wing.allocation.num_gpus == 2
    folder.slurm.cancel(wing.job_id)
    folder.wait(job.job_id, JobState.PENDING)
    # It would start two minutes later, as after a requeue.
    folder.slurm.set_begin_time(job.job_id, ahead_s=1)
    folder.ranks(1, 2)
    (folder.folder / "go").touch()
    assert job.results(TIMEOUT_S) == [("here", 0, 2), ("here", 1, 2)]
    assert "start 2 trains on" in job.stderr()


def fail_on_rank_1() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("seen on rank 1")
    time.sleep(600)


def die() -> None:
    print("what was last seen", flush=True)
    os.kill(os.getpid(), 9)


def sleep() -> None:
    Path("0.0.json").write_text("{}")
    time.sleep(600)


def test_that_failures_come_back_with_what_is_known_of_them(folder: SubmitDirectory, submit: Submit) -> None:
    failing = submit(fail_on_rank_1, min_gpus=2)
    dying = submit(die, job_name="doomed", output="%x-%j.out")
    cancelled = submit(sleep)
    error = failing.exception(TIMEOUT_S)
    assert isinstance(error, FunctionError)
    assert (error.rank, str(error.__cause__)) == (1, "seen on rank 1")
    assert failing.state == "FAILED"

    error = dying.exception(TIMEOUT_S)
    assert type(error) is JobFailedError
    assert "ended without a result of its function: its state is FAILED" in str(error)
    assert "what was last seen" in str(error)
    assert dying.stdout_file == folder.folder / f"doomed-{dying.job_id}.out"

    folder.ranks(0, 1)
    cancelled.cancel()
    with pytest.raises(JobFailedError, match="its state is CANCELLED"):
        cancelled.result(TIMEOUT_S)
    with pytest.raises(PolluxError, match="no store is configured"):
        cancelled.explain()


def test_that_a_refusal_by_sbatch_is_an_error_that_leaves_no_files(
    folder: SubmitDirectory, submit: Submit
) -> None:
    with pytest.raises(SlurmCommandError, match=r"sbatch has refused the job: .*invalid partition") as caught:
        submit(sleep, partition="nowhere")
    assert "\n" not in str(caught.value)
    assert not (folder.folder / "pollux-checkpoints").exists()


SCRIPT = """
import os
import pollux_slurm

FACTOR = 6

def product(value):
    return value * FACTOR, os.environ["WORLD_SIZE"]

job = pollux_slurm.submit(product, 7, min_gpus=2)
print(job.job_id, *job.result(timeout_s=300))
"""


def test_that_a_script_submits_a_function_of_its_own(folder: SubmitDirectory) -> None:
    (folder.folder / "launch.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "launch.py"], cwd=folder.folder, capture_output=True, text=True, check=False
    )
    assert re.fullmatch(r"\d+ 42 2\n", done.stdout), done.stderr
    wait_until(
        lambda: folder.job(done.stdout.split()[0]).state is JobState.COMPLETED, timeout_s=60, what="its end"
    )
