"""A real job under a daemon in shadow mode."""

from __future__ import annotations

import pytest

from pollux_slurm.model import JobState
from pollux_slurm.store.contract.interface import RunPhase
from tests.e2e.user_commands import UserCommands

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.torch]


# docs/tutorials/shadow.md has a daemon in shadow mode, too.
@pytest.mark.full
def test_that_shadow_mode_decides_and_touches_nothing(user: UserCommands) -> None:
    user.start_daemon("--shadow")
    job_id = user.digits("watched", epochs=10, pass_s="0.005,0.001")
    record = user.wait_over(job_id)
    assert record.state is JobState.COMPLETED, user.log()
    assert record.last_decision is not None
    assert user.store.journal.reallocations() == ()
    job = user.slurm.read_job(job_id)
    assert job is not None
    assert (job.restart_count, record.run and record.run.phase) == (0, RunPhase.FINISHED)
