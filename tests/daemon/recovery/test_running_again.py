"""A job that was recorded as over, and that runs with its token, is managed again."""

from __future__ import annotations

import pytest

from pollux_slurm.model import Allocation, JobState
from tests.daemon.enact.test_state_machine import started
from tests.daemon.harness import Harness


def grows_again(harness: Harness, job_id: str) -> None:
    assert harness.job(job_id).state is JobState.RUNNING
    harness.run_until(
        harness.daemon(), until=lambda: harness.store.jobs.get(job_id).run is not None, seconds=8
    )
    harness.targets = {job_id: {"n1": 2}}
    harness.run_until(harness.daemon(), seconds=30)
    assert harness.job(job_id).allocation == Allocation.of({"n1": 2})
    record = harness.store.jobs.get(job_id)
    assert (record.state, record.finished_at) == (JobState.RUNNING, None)


def test_that_a_job_that_a_person_requeues_after_its_failure_is_managed(harness: Harness) -> None:
    job_id = started(harness)
    harness.run_until(harness.daemon(), seconds=8)
    harness.slurm.finish(job_id, exit_code=1)
    harness.run_until(harness.daemon(), seconds=8)
    assert harness.store.jobs.get(job_id).state is JobState.FAILED
    harness.slurm.requeue_failed(job_id, restart_count=0)
    harness.clock.advance(1)
    harness.slurm.release(job_id)
    harness.clock.advance(130)
    harness.slurm.snapshot()
    grows_again(harness, job_id)


@pytest.mark.parametrize("rounds", [2, 6])
def test_that_a_job_whose_comment_was_edited_for_a_while_is_managed(harness: Harness, rounds: int) -> None:
    job_id = started(harness)
    comment = harness.job(job_id).comment
    harness.slurm.set_comment(job_id, "mine")
    daemon = harness.daemon()
    for _ in range(rounds):
        harness.clock.advance(4)
        daemon.round()
    assert harness.store.jobs.get(job_id).state.is_over
    harness.slurm.set_comment(job_id, comment)
    harness.run_until(daemon, seconds=8)
    grows_again(harness, job_id)


def test_that_a_job_that_has_ended_stays_over(harness: Harness) -> None:
    job_id = started(harness)
    harness.slurm.finish(job_id)
    harness.run_until(harness.daemon(), seconds=16)
    record = harness.store.jobs.get(job_id)
    assert (record.state, record.finished_at is None) == (JobState.COMPLETED, False)
