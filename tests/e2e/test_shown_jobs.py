"""Real jobs under a real daemon: in shadow mode, and as `pollux status` shows them."""

from __future__ import annotations

import json
import subprocess

import pytest

from pollux_slurm.model import JobState
from pollux_slurm.store.contract.interface import RunPhase
from tests.e2e.user_commands import POLLUX, UserCommands

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.torch]


# docs/tutorials/shadow.md has a daemon in shadow mode, too.
@pytest.mark.full
def test_that_shadow_mode_decides_and_touches_nothing(user: UserCommands) -> None:
    user.start_daemon("--shadow")
    job_id = user.digits("watched", epochs=10, pass_s="0.005,0.001")
    record = user.wait_over(job_id)
    assert record.state is JobState.COMPLETED, user.log()
    assert record.last_decision is not None
    assert user.store.reallocations() == ()
    job = user.slurm.read_job(job_id)
    assert job is not None
    assert (job.restart_count, record.run and record.run.phase) == (0, RunPhase.FINISHED)


def test_that_status_shows_a_running_job(user: UserCommands) -> None:
    user.start_daemon()
    job_id = user.digits("shown", epochs=500, max_gpus=1)  # so that it stays where it is

    def has_goodput() -> bool:
        record = user.record(job_id)
        return record is not None and record.sample is not None and record.sample.goodput is not None

    user.wait(has_goodput, "a goodput sample")
    done = subprocess.run(
        [*POLLUX, "status", "--json"], env=user.env, capture_output=True, text=True, timeout=300
    )
    (shown,) = json.loads(done.stdout)
    assert (shown["job_id"], shown["name"], shown["state"]) == (job_id, "shown", "running")
    assert shown["goodput"] > 0
    table = subprocess.run(
        [*POLLUX, "status"], env=user.env, capture_output=True, text=True, timeout=300
    ).stdout
    assert "shown" in table

    def is_decided() -> bool:
        record = user.record(job_id)
        return record is not None and record.last_decision_bound_by not in (None, "pinned")

    user.wait(is_decided, "a round that decides by the job's model")
    explained = subprocess.run(
        [*POLLUX, "explain", job_id, "--json"], env=user.env, capture_output=True, text=True, timeout=300
    )
    found = json.loads(explained.stdout)
    assert (found["job_id"], found["objective"]) == (job_id, "generalized-mean"), explained.stderr
    assert found["speedup"] > 0
    assert found["explanation"].startswith(f"job {job_id}: n")
    missing = subprocess.run(
        [*POLLUX, "status", "999999"], env=user.env, capture_output=True, text=True, timeout=300
    )
    assert missing.returncode != 0
    assert len(missing.stderr.strip().splitlines()) == 1
    assert "999999" in missing.stderr
