"""A job that Slurm has started without its GPUs starts again, and no other one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pollux_slurm.agent.environment.layout import RunLayout
from pollux_slurm.errors import LaunchError, SlurmUnavailable
from pollux_slurm.launch.node.rendezvous import reserve_port
from pollux_slurm.launch.node.watched_processes import ExitStatus
from pollux_slurm.launch.step.allocation import allocated_gpus
from pollux_slurm.launch.step.missing_gpus import requeue_if_gpus_missing
from pollux_slurm.launch.step.run_step import PreparedJob, run_step
from pollux_slurm.model import Allocation, JobState, SlurmJob
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.commands.runner import CommandRunner
from tests.fakes.slurm import FakeClock, FakeSlurm, fake_node


def running_job() -> tuple[FakeSlurm, str]:
    slurm = FakeSlurm([fake_node("n0")], clock=FakeClock(), kill_s=1.0)
    job_id = slurm.submit("#!/bin/sh", ["--gpus=2"], [], {})
    return slurm, job_id


def after_check(
    slurm: FakeSlurm, job_id: str, *, num_gpus: int | None = 2, restarts: str | None = None
) -> SlurmJob:
    """Return the job after `requeue_if_gpus_missing`."""
    environ = {"SLURM_JOB_ID": job_id} | ({"SLURM_RESTART_COUNT": restarts} if restarts is not None else {})
    requeue_if_gpus_missing(
        num_gpus,
        environ=environ,
        connect=lambda: slurm,
        warn=lambda _words: None,
        pause=lambda _seconds: None,
    )
    found = slurm.read_job(job_id)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("held", "state", "restart_count", "code"),
    [
        (0, JobState.RUNNING, 3, 143),
        (1, JobState.RUNNING, 0, 143),
        (2, JobState.COMPLETING, 0, 143),
        (2, JobState.CANCELLED, 0, 143),
        (2, JobState.RUNNING, 3, 5),
        (0, JobState.RUNNING, 50, 5),
    ],
    ids=["without GPUs", "with too few", "ending", "cancelled", "with its GPUs", "in vain too often"],
)
def test_that_a_wing_whose_step_slurm_did_not_let_begin_counts_as_stopped(
    tmp_path: Path, held: int, state: JobState, restart_count: int, code: int
) -> None:
    slurm, job_id = running_job()
    slurm.set_job(job_id, allocation=Allocation.of({"n0": held} if held else {}), state=state)
    write_commands(tmp_path, srun="exit 5", squeue="exit 0")
    said: list[str] = []
    status = run_two_gpus(tmp_path, lambda: slurm, warn=said.append, job_id=job_id, restarts=restart_count)
    assert (status.exit_code, status.failed_by_itself) == (code, code == 5)
    lacks = held < 2 and code == 143
    assert said == ([f"Slurm has started job {job_id} with {held} of its 2 GPUs"] if lacks else [])
    found = slurm.read_job(job_id)
    assert found is not None
    assert found.restart_count == 0


def test_that_a_wing_whose_process_has_failed_ends_with_its_code(tmp_path: Path) -> None:
    """Also where Slurm ends the wing meanwhile."""
    slurm, job_id = running_job()
    slurm.set_job(job_id, state=JobState.COMPLETING)
    exit_file = tmp_path / "job.exit"
    write_commands(tmp_path, srun=f"echo 7 > {exit_file}; exit 137", squeue="exit 0")
    status = run_two_gpus(
        tmp_path, lambda: slurm, warn=lambda _words: None, job_id=job_id, restarts=0, exit_file=exit_file
    )
    assert (status.exit_code, exit_file.exists()) == (7, False)


def test_that_a_job_with_fewer_gpus_than_it_should_have_is_requeued() -> None:
    slurm, job_id = running_job()
    slurm.set_job(job_id, allocation=Allocation())
    assert after_check(slurm, job_id).restart_count == 1


@pytest.mark.parametrize(("asked", "held", "restarts"), [(2, 0, 1), (2, 1, 0), (0, 0, 0)])
def test_that_without_gpus_in_the_environment_the_requested_ones_count(
    asked: int, held: int, restarts: int
) -> None:
    slurm, job_id = running_job()
    slurm.set_job(job_id, allocation=Allocation.of({"n0": held}), requested_gpus=asked)
    assert after_check(slurm, job_id, num_gpus=None).restart_count == restarts


def test_that_a_job_on_two_nodes_without_gpus_is_requeued_as_well(tmp_path: Path) -> None:
    slurm, job_id = running_job()
    slurm.set_job(job_id, allocation=Allocation())
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho n0\necho n1\n")
    scontrol.chmod(0o755)
    warnings: list[str] = []
    environ = {"SLURM_JOB_ID": job_id, "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[0-1]"}
    with pytest.raises(LaunchError, match="no GPUs for the nodes"):  # it has not been ended in time here
        allocated_gpus(
            environ,
            connect=lambda: slurm,
            runner=CommandRunner(environ={}, bin_dir=tmp_path),
            warn=warnings.append,
            pause=lambda _seconds: None,
        )
    assert warnings == [f"Slurm has started job {job_id} with 0 of its 2 GPUs: requeuing it"]
    found = slurm.read_job(job_id)
    assert found is not None
    assert found.restart_count == 1


@pytest.mark.parametrize(
    ("restarts", "shown"),
    [(None, 0), ("1", 0), ("50", 50)],
    ids=["it has all", "a leftover of another run", "in vain too often"],
)
def test_that_other_jobs_are_not_requeued(restarts: str | None, shown: int) -> None:
    slurm, job_id = running_job()
    slurm.set_job(job_id, restart_count=shown, allocation=Allocation.of({"n0": 2 if restarts is None else 0}))
    found = after_check(slurm, job_id, restarts=restarts)
    assert (found.state, found.restart_count) == (JobState.RUNNING, shown)


def test_that_an_unavailable_slurm_is_warned_of_and_nothing_else_happens() -> None:
    slurm, job_id = running_job()
    slurm.fail("read_job", SlurmUnavailable("no answer"))
    warnings: list[str] = []
    requeue_if_gpus_missing(2, environ={"SLURM_JOB_ID": job_id}, connect=lambda: slurm, warn=warnings.append)
    assert warnings == [f"job {job_id} cannot be requeued: no answer"]


@pytest.mark.parametrize(
    ("body", "restarts", "code", "looks"),
    [
        ("exit 3", "", 3, 1),
        ("kill -TERM $PPID; exit 143", "", 143, 0),
        # srun ends with 1 where its step has not begun.
        ("kill -TERM $PPID; sleep 1; exit 1", "0", 143, 0),
    ],
    ids=["by itself", "asked to stop", "a wing asked to stop"],
)
def test_that_after_a_step_that_was_asked_to_stop_slurm_is_not_read(
    tmp_path: Path, body: str, restarts: str, code: int, looks: int
) -> None:
    """Reading the job takes time, for which the job's next start would wait."""
    write_commands(tmp_path, srun=body, squeue="exit 0")
    # In its own process, which gets the signal.
    script = f"from {__name__} import looks_after; import sys; print(*looks_after(*sys.argv[1:]))"
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), restarts],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.stdout.split() == [str(code), str(looks)], ended.stderr


def looks_after(bin_dir: str, restarts: str) -> tuple[int, int]:
    """Return the exit code of a step with this folder's srun, and how often slurmctld was asked about it."""
    looked: list[str] = []
    slurm, _ = running_job()

    def connect() -> SlurmClient:
        looked.append("look")
        return slurm

    status = run_two_gpus(
        Path(bin_dir),
        connect,
        warn=lambda _words: None,
        job_id="1",
        restarts=int(restarts) if restarts else None,
    )
    return status.exit_code, len(looked)


def write_commands(folder: Path, **bodies: str) -> None:
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)


def run_two_gpus(
    bin_dir: Path,
    connect: Callable[[], SlurmClient],
    *,
    warn: Callable[[str], None],
    job_id: str,
    restarts: int | None,
    exit_file: Path | None = None,
) -> ExitStatus:
    """Run a step of two GPUs with this folder's srun; `restarts` are those of a wing's training."""
    layout = RunLayout(
        nodes=(("n0", 2),), master_addr="127.0.0.1", master_port=1, secret="s", uses_gpus=True, job_id=job_id,
        exit_file=exit_file, kill_after_s=1.0, restart_count=restarts,
    )  # fmt: skip
    with reserve_port() as port:
        job = PreparedJob(
            layout=layout,
            environ={**os.environ, "SLURM_JOB_ID": job_id},
            runner=CommandRunner(environ=dict(os.environ), bin_dir=bin_dir),
            connect=connect,
            warn=warn,
            all_nodes=True,
            port=port,
        )
        return run_step(["train"], job)
