"""Jobs on a real Slurm of two nodes with four fake GPUs each: ranks, signals, exit codes."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.agent.environment.token import read_token, token_sha256
from pollux_slurm.launch.step.step_signals import signal_step
from pollux_slurm.model import Allocation, JobShape, JobState
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.parsing.comment_terms import decode_comment, user_part
from tests.launch.submit_directory import BODY, SubmitDirectory, make_submit_directory
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def job_at_its_limit(
    two_node_sandbox: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SubmitDirectory, str]]:
    """A job with a limit of one minute, started before the other tests, so that the minute passes meanwhile.

    It takes a GPU of n1, and leaves n0 to them. Its script writes its own exit code: slurmctld may have
    forgotten the job when the other tests are done.
    """
    made = make_submit_directory(tmp_path_factory.mktemp("limit"), two_node_sandbox)
    body = f"{BODY}echo $? > ended.new && mv ended.new ended\n"
    job_id = made.submit("--time=1", "--nodelist=n1", "train.sbatch", "wait", body=body)
    yield made, job_id
    made.slurm.cancel(job_id)


def test_that_a_job_is_submitted_as_sbatch_does_with_its_terms_in_the_comment(
    submit_dir: SubmitDirectory, job_at_its_limit: tuple[SubmitDirectory, str]
) -> None:
    (submit_dir.folder / "train.sbatch").write_text(BODY)
    done = submit_dir.pollux_sbatch(
        "--comment", "ask Ada\nfirst", "--max-gpus=4", "-o", "log", "train.sbatch", "pass"
    )
    assert re.fullmatch(r"Submitted batch job [0-9]+\n", done.stdout)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"pollux: no store is set: .*\npollux: checkpoints take .* are free\n", done.stderr)
    (env,) = submit_dir.ranks(0, 1)
    job = submit_dir.wait(submit_dir.jobs[-1], JobState.COMPLETED)
    # No store is configured here, and the script never calls the library.
    assert f"pollux: job {job.job_id} trains without a store: it reports nothing" in submit_dir.log()
    assert (
        submit_dir.log().count("pollux: no process of this run has called pollux_slurm.torch.init_process")
        == 1
    )
    terms = decode_comment(job.comment)
    assert terms is not None
    assert (terms.min_gpus, terms.max_gpus) == (1, 4)
    assert user_part(job.comment) == "ask Ada\nfirst"
    assert terms.token_sha256 == token_sha256(read_token(Path(env["POLLUX_TOKEN_FILE"])))
    assert Path(env["POLLUX_CHECKPOINT_DIR"]).parent == submit_dir.folder / "pollux-checkpoints"
    assert (job.name, job.requested_gpus, job.cpus_per_gpu, job.held) == ("train.sbatch", 1, 1, False)
    assert (env["WORLD_SIZE"], env["POLLUX_JOB_ID"]) == ("1", job.job_id)
    assert env["CUDA_VISIBLE_DEVICES"].isdecimal()


def test_that_uneven_nodes_and_a_new_allocation_after_a_requeue_give_the_right_ranks(
    submit_dir: SubmitDirectory,
) -> None:
    job_id = submit_dir.submit("--gpus=5", "--nodes=2", "train.sbatch", "wait")
    first = submit_dir.ranks(0, 5)
    assert [env["LOCAL_RANK"] for env in first] == ["0", "1", "2", "3", "0"]
    assert [env["SLURMD_NODENAME"] for env in first] == ["n0"] * 4 + ["n1"]
    assert {env["POLLUX_GPUS_PER_NODE"] for env in first} == {"4,1"}
    assert {env["MASTER_PORT"] for env in first} == {first[0]["MASTER_PORT"]}
    assert [len(env["CUDA_VISIBLE_DEVICES"].split(",")) for env in first] == [4, 4, 4, 4, 1]

    submit_dir.slurm.requeue_hold(job_id)
    submit_dir.wait(job_id, JobState.PENDING)
    assert submit_dir.saved() == [f"0.{rank}.saved" for rank in range(5)]
    submit_dir.slurm.reshape(job_id, JobShape.of(Allocation.of({"n0": 1, "n1": 2})))
    submit_dir.slurm.release(job_id)
    second = submit_dir.ranks(1, 3)
    # Slurm chooses which of the nodes gives two GPUs (22.05); the ranks must agree with it.
    split = [[env["SLURMD_NODENAME"] for env in second].count(node) for node in ("n0", "n1")]
    assert sorted(split) == [1, 2]
    assert [env["SLURMD_NODENAME"] for env in second] == ["n0"] * split[0] + ["n1"] * split[1]
    assert [int(env["LOCAL_RANK"]) for env in second] == [*range(split[0]), *range(split[1])]
    assert {env["POLLUX_GPUS_PER_NODE"] for env in second} == {f"{split[0]},{split[1]}"}
    assert {(env["WORLD_SIZE"], env["POLLUX_RESTART_COUNT"]) for env in second} == {("3", "1")}
    assert second[0]["POLLUX_TOKEN_FILE"] == first[0]["POLLUX_TOKEN_FILE"]
    assert second[0]["POLLUX_CHECKPOINT_DIR"] == first[0]["POLLUX_CHECKPOINT_DIR"]

    submit_dir.slurm.requeue_hold(job_id)
    submit_dir.wait(job_id, JobState.PENDING)
    submit_dir.slurm.reshape(job_id, JobShape.of(Allocation.of({"n1": 2})))
    submit_dir.slurm.release(job_id)
    third = submit_dir.ranks(2, 2)
    assert {(env["WORLD_SIZE"], env["MASTER_ADDR"]) for env in third} == {("2", "127.0.0.1")}
    (submit_dir.folder / "go").touch()
    assert submit_dir.wait(job_id, JobState.COMPLETED).exit_code == 0


# Rank 4 is on the other node; of the first node, test_launcher.py has exit codes.
@pytest.mark.parametrize(("rank", "code"), [pytest.param("0", 3, marks=pytest.mark.full), ("4", 7)])
def test_that_the_job_has_the_failing_ranks_exit_code(
    submit_dir: SubmitDirectory, rank: str, code: int
) -> None:
    job_id = submit_dir.submit("--gpus=5", "--nodes=2", "train.sbatch", "fail", rank, str(code))
    submit_dir.ranks(0, 5)
    assert submit_dir.wait(job_id, JobState.FAILED).exit_code == code
    left = list((submit_dir.folder / "pollux-checkpoints").rglob("*.exit"))
    assert left == []


# Rank 4, on the other node, runs out of memory once; the others wait for it.
HUNGRY = """#!/bin/bash
PYTHON -m pollux_slurm run --kill-after=1 -- PYTHON -c '
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["POLLUX_CHECKPOINT_DIR"], "memory")
known = folder.exists()
rank = os.environ["RANK"]
os.write(1, f"rank {rank} {known}\\n".encode())  # one write: no other rank comes between
if known:
    sys.exit(0)
pathlib.Path(folder.parent, "seen-" + rank).touch()
if rank == "4":
    deadline = time.monotonic() + 600
    while len(list(folder.parent.glob("seen-*"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)  # all have looked before this one fails
    folder.mkdir()
    (folder / "000000-000004.json").write_text("{}")
    sys.exit(1)
time.sleep(600)
'
"""


def test_that_when_a_rank_runs_out_of_memory_all_ranks_start_again_in_the_same_job(
    submit_dir: SubmitDirectory,
) -> None:
    body = HUNGRY.replace("PYTHON", sys.executable)
    job_id = submit_dir.submit("--gpus=5", "--nodes=2", "train.sbatch", body=body)
    assert submit_dir.wait(job_id, JobState.COMPLETED).exit_code == 0
    env = [line for line in submit_dir.log().splitlines() if line.startswith("rank")]
    assert sorted(line for line in env if "True" in line) == [f"rank {rank} True" for rank in range(5)]
    assert "rank 4 False" in env
    assert "starting again with smaller micro-batches" in submit_dir.log()


def test_that_after_sigterm_to_the_batch_scripts_launcher_the_ranks_save(
    submit_dir: SubmitDirectory,
) -> None:
    # srun itself would kill them at once.
    wait_for_ranks = "while [ ! -e 0.0.json ] || [ ! -e 0.1.json ]; do sleep 0.1; done"
    command = BODY.splitlines()[1]
    body = f"#!/bin/bash\n{command} &\n{wait_for_ranks}\nkill -TERM $!\nwait $!\n"
    job_id = submit_dir.submit("--gpus=2", "train.sbatch", "wait", body=body)
    assert submit_dir.wait(job_id, JobState.COMPLETED).exit_code == 0
    assert submit_dir.saved() == ["0.0.saved", "0.1.saved"]


def test_that_a_job_started_without_its_gpus_is_requeued(submit_dir: SubmitDirectory) -> None:
    """As after a restart of slurmctld: the environment has GPUs that slurmctld has not allocated."""
    body = BODY.replace("\n", "\nexport SLURM_GPUS_ON_NODE=3\n", 1)
    job_id = submit_dir.submit("--gpus=1", "--nodes=1", "train.sbatch", "end", body=body)
    wait_until(
        lambda: (submit_dir.job(job_id).state, submit_dir.job(job_id).restart_count) == (JobState.PENDING, 1),
        timeout_s=120,
        what=f"the job to be back in the queue; its log: {submit_dir.log()}",
    )
    said = f"Slurm has started job {job_id} with 1 of its 3 GPUs: requeuing it"
    assert said in submit_dir.log()


def test_that_a_leftover_of_an_earlier_run_does_not_signal_the_present_run(
    submit_dir: SubmitDirectory,
) -> None:
    """Its node was DOWN and has returned: slurmd ends the old run, the job trains elsewhere."""
    job_id = submit_dir.submit("--max-gpus=2", "train.sbatch", "wait")
    submit_dir.ranks(0, 1)
    submit_dir.slurm.requeue_hold(job_id)
    submit_dir.wait(job_id, JobState.PENDING)
    submit_dir.slurm.reshape(job_id, JobShape(num_gpus=2, cpus_per_gpu=1))
    submit_dir.slurm.release(job_id)
    submit_dir.ranks(1, 2)
    before = submit_dir.saved()
    runner = CommandRunner(environ=submit_dir.environ)
    assert not signal_step(signal.SIGTERM, job_id=job_id, restart_count=0, runner=runner)
    assert submit_dir.job(job_id).state is JobState.RUNNING
    assert submit_dir.saved() == before
    assert signal_step(signal.SIGTERM, job_id=job_id, restart_count=1, runner=runner)
    wait_until(
        lambda: {"1.0.saved", "1.1.saved"} <= set(submit_dir.saved()), timeout_s=120, what="both ranks"
    )


def test_that_a_leftover_of_an_earlier_run_does_not_end_the_step_of_this_one(
    submit_dir: SubmitDirectory,
) -> None:
    """Its srun ends a step by number, and Slurm counts the steps of each run from 0."""
    job_id = submit_dir.submit("--gpus=1", "train.sbatch", "wait")
    (first,) = submit_dir.ranks(0, 1)
    submit_dir.slurm.requeue_hold(job_id)
    submit_dir.wait(job_id, JobState.PENDING)
    submit_dir.slurm.reshape(job_id, JobShape(num_gpus=1, cpus_per_gpu=1))
    submit_dir.slurm.release(job_id)
    (second,) = submit_dir.ranks(1, 1)
    assert second["SLURM_STEP_ID"] != first["SLURM_STEP_ID"]
    done = submit_dir.run(
        "scancel", "--signal=KILL", f"{job_id}.{first['SLURM_STEP_ID']}"
    )  # as srun asks for it
    (submit_dir.folder / "go").touch()
    assert submit_dir.wait(job_id, JobState.COMPLETED).exit_code == 0, (
        done.stderr,
        submit_dir.log(),
    )


def test_that_no_rank_outlives_a_killed_launcher_of_the_batch_script(
    submit_dir: SubmitDirectory,
) -> None:
    wait_for_ranks = "while [ ! -e 0.0.json ] || [ ! -e 0.1.json ]; do sleep 0.1; done"
    command = BODY.splitlines()[1]
    wait_for_us = "while [ ! -e go ]; do sleep 0.1; done"
    body = f"#!/bin/bash\n{command} &\n{wait_for_ranks}\nkill -KILL $!\nwait $!\n{wait_for_us}\n"
    job_id = submit_dir.submit("--gpus=2", "train.sbatch", "wait", body=body)
    pids = [int(env["PID"]) for env in submit_dir.ranks(0, 2)]
    wait_until(
        lambda: not any(Path(f"/proc/{pid}/environ").exists() for pid in pids),
        timeout_s=120,
        what="the end of the ranks",
    )
    assert submit_dir.job(job_id).state is JobState.RUNNING


def test_that_a_job_is_warned_before_its_time_limit_and_saves(
    job_at_its_limit: tuple[SubmitDirectory, str],
) -> None:
    submit_dir, job_id = job_at_its_limit
    ended = submit_dir.folder / "ended"
    wait_until(ended.exists, timeout_s=300, what="the end of the job's script")
    assert submit_dir.saved() == ["0.0.saved"]
    assert ended.read_text() == "0\n"
    job = submit_dir.slurm.read_job(job_id)
    assert job is None or job.state in (JobState.RUNNING, JobState.COMPLETING, JobState.COMPLETED)
