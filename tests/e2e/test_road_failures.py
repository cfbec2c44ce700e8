"""The same road where something goes wrong: a job or the daemon dies, or a job says nothing."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from pollux_slurm.model import JobState, ReallocationStep
from tests.e2e.road import Road

CRASHING = Path(__file__).with_name("crashing.py")

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.torch]


def test_that_a_cancelled_job_leaves_nothing_open(road: Road) -> None:
    road.start_daemon()
    job_id = road.digits("cancelled", epochs=500)
    road.wait(
        lambda: road.store.open_reallocations(),
        "a reallocation to begin",
        every_s=0.05,
    )
    road.slurm.cancel(job_id)
    record = road.wait_over(job_id)
    assert record.state is JobState.CANCELLED, road.log()
    road.wait(lambda: not road.store.open_reallocations(), "the journal to close")
    (move,) = road.store.reallocations(job_id)
    assert move.step in (ReallocationStep.FAILED, ReallocationStep.ROLLED_BACK)
    assert move.reason is not None
    assert "cancelled" in move.reason or "completing" in move.reason


def test_that_a_job_that_crashes_is_recorded_and_left_alone(road: Road) -> None:
    road.start_daemon()
    script = road.directory / "crash.sbatch"
    script.write_text(f"#!/bin/bash\nexec pollux run -- python {CRASHING}\n")
    job_id = road.sbatch("--max-gpus=8", str(script))
    record = road.wait_over(job_id)
    assert record.state is JobState.FAILED, road.log()
    road.wait(lambda: not road.store.open_reallocations(), "the journal to close")
    job = road.slurm.read_job(job_id)
    assert job is not None
    assert job.restart_count == record.num_restarts, "nobody may restart a crashed job"


def test_that_a_job_that_never_reports_is_never_moved(road: Road) -> None:
    road.start_daemon()
    script = road.directory / "silent.sbatch"
    done = road.directory / "done"
    script.write_text(f"#!/bin/bash\nuntil [ -e {done} ]; do sleep 0.2; done\n")
    job_id = road.sbatch("--max-gpus=8", str(script))
    road.wait(lambda: road.record(job_id), "the job to be registered")
    log = road.directory / "daemon.log"
    enough = log.read_text().count(", fitness ") + 3
    road.wait(lambda: log.read_text().count(", fitness ") >= enough, "three rounds")
    done.touch()
    record = road.wait_over(job_id)
    assert record.state is JobState.COMPLETED, road.log()
    assert record.run is None
    assert not [move for move in road.store.reallocations(job_id) if move.moves_running]
    job = road.slurm.read_job(job_id)
    assert job is not None
    assert job.restart_count == 0


def test_that_a_daemon_killed_amid_a_reallocation_is_followed_up_by_the_next(road: Road) -> None:
    road.start_daemon()
    job_id = road.digits("survivor", max_gpus=2, epochs=16)

    def beyond_the_requeue() -> bool:
        return any(
            move.step in (ReallocationStep.REQUEUED, ReallocationStep.RESHAPED, ReallocationStep.RELEASED)
            for move in road.store.open_reallocations()
        )

    road.wait(beyond_the_requeue, "a job to be requeued", every_s=0.02)
    road.stop_daemon(signal.SIGKILL)

    def told() -> str:
        shown = road.pollux("status").stdout
        return shown if "the daemon is silent: process " in shown else ""

    said = road.wait(told, "status to say that the daemon is silent")
    held = road.slurm.read_job(job_id)
    assert held is not None
    assert "states and GPUs: Slurm, now" in said
    assert (f"scontrol release {job_id}" in said) == held.held
    examined = road.pollux("doctor")
    assert ("FAIL daemon: the daemon is silent" in examined.stdout) == held.held
    road.start_daemon()
    record = road.wait_over(job_id)
    assert record.state is JobState.COMPLETED, road.log()
    result = json.loads((road.directory / "survivor.json").read_text())
    assert [(epoch["min"], epoch["max"]) for epoch in result["audit"]] == [(1, 1)] * result["epochs"]
