"""The whole way with failures: a job or the daemon dies, or a job does not answer."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from pollux_slurm.model import JobState, ReallocationStep
from tests.e2e.user_commands import UserCommands

CRASHING = Path(__file__).with_name("crashing.py")

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.torch]


def test_that_a_cancelled_job_leaves_nothing_open(user: UserCommands) -> None:
    user.start_daemon()
    job_id = user.digits("cancelled", epochs=500)
    user.wait(
        lambda: user.store.journal.open_reallocations(),
        "a reallocation to begin",
        every_s=0.05,
    )
    user.slurm.cancel(job_id)
    record = user.wait_over(job_id)
    assert record.state is JobState.CANCELLED, user.log()
    user.wait(lambda: not user.store.journal.open_reallocations(), "the journal to close")
    (move,) = user.store.journal.reallocations(job_id)
    assert move.step in (ReallocationStep.FAILED, ReallocationStep.ROLLED_BACK)
    assert move.reason is not None
    assert "cancelled" in move.reason or "completing" in move.reason


def test_that_a_job_that_crashes_is_recorded_and_not_touched(user: UserCommands) -> None:
    user.start_daemon()
    script = user.directory / "crash.sbatch"
    script.write_text(f"#!/bin/bash\nexec pollux run -- python {CRASHING}\n")
    job_id = user.sbatch("--max-gpus=8", str(script))
    record = user.wait_over(job_id)
    assert record.state is JobState.FAILED, user.log()
    user.wait(lambda: not user.store.journal.open_reallocations(), "the journal to close")
    job = user.slurm.read_job(job_id)
    assert job is not None
    assert job.restart_count == record.num_restarts, "nobody may restart a crashed job"


def test_that_a_job_that_never_reports_is_never_moved(user: UserCommands) -> None:
    user.start_daemon()
    script = user.directory / "silent.sbatch"
    done = user.directory / "done"
    script.write_text(f"#!/bin/bash\nuntil [ -e {done} ]; do sleep 0.2; done\n")
    job_id = user.sbatch("--max-gpus=8", str(script))
    user.wait(lambda: user.record(job_id), "the job to be registered")
    log = user.directory / "daemon.log"
    enough = log.read_text().count(", fitness ") + 3
    user.wait(lambda: log.read_text().count(", fitness ") >= enough, "three rounds")
    done.touch()
    record = user.wait_over(job_id)
    assert record.state is JobState.COMPLETED, user.log()
    assert record.run is None
    assert not [move for move in user.store.journal.reallocations(job_id) if move.moves_running]
    job = user.slurm.read_job(job_id)
    assert job is not None
    assert job.restart_count == 0


def test_that_a_daemon_killed_amid_a_reallocation_is_followed_up_by_the_next(user: UserCommands) -> None:
    user.start_daemon()
    job_id = user.digits("survivor", max_gpus=2, epochs=16)

    def beyond_the_requeue() -> bool:
        return any(
            move.step in (ReallocationStep.REQUEUED, ReallocationStep.RESHAPED, ReallocationStep.RELEASED)
            for move in user.store.journal.open_reallocations()
        )

    user.wait(beyond_the_requeue, "a job to be requeued", every_s=0.02)
    user.stop_daemon(signal.SIGKILL)

    def silence_shown() -> str:
        shown = user.pollux("status").stdout
        return shown if "the daemon is silent: process " in shown else ""

    shown_text = user.wait(silence_shown, "status to show that the daemon is silent", every_s=5.0)
    held = user.slurm.read_job(job_id)
    assert held is not None
    assert "states and GPUs: Slurm, now" in shown_text
    assert (f"scontrol release {job_id}" in shown_text) == held.held
    examined = user.pollux("doctor")
    assert ("FAIL daemon: the daemon is silent" in examined.stdout) == held.held
    user.start_daemon()
    record = user.wait_over(job_id)
    assert record.state is JobState.COMPLETED, user.log()
    result = json.loads((user.directory / "survivor.json").read_text())
    assert [(epoch["min"], epoch["max"]) for epoch in result["audit"]] == [(1, 1)] * result["epochs"]
