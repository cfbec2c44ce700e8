"""Pauses: stopping and resuming running jobs, with external commands in between."""

from __future__ import annotations

import itertools

import pytest

from pollux_slurm.config import PolicyConfig
from pollux_slurm.errors import SlurmCommandError, SlurmUnavailable
from pollux_slurm.model import Allocation, JobState
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.policy import decide
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.crashing import Killed, KilledAt
from tests.daemon.harness import CONFIG, Harness
from tests.store_fixtures import wipe

PAUSES = PolicyConfig(pauses=True)


def started(harness: Harness, *, gpus: int = 1) -> str:
    job_id = harness.submit(gpus=gpus)
    harness.run_until(harness.daemon(), until=lambda: harness.has_stepped(job_id), seconds=8)
    assert harness.job(job_id).state is JobState.RUNNING
    return job_id


def paused(harness: Harness, *, gpus: int = 1) -> str:
    """Return a job that ran, and that the daemon paused."""
    job_id = started(harness, gpus=gpus)
    harness.targets = {job_id: {}}
    harness.run_until(harness.daemon(policy=PAUSES), until=lambda: is_paused(harness, job_id), seconds=30)
    assert is_paused(harness, job_id)
    return job_id


def is_paused(harness: Harness, job_id: str) -> bool:
    waits = harness.job(job_id).state is JobState.PENDING and not harness.open_moves()
    return waits and harness.store.jobs.get(job_id).paused_at is not None


def test_that_a_job_is_paused_behind_its_checkpoint_and_gets_gpus_again(harness: Harness) -> None:
    job_id = paused(harness)
    job = harness.job(job_id)
    assert (job.state, job.held, job.restart_count) == (JobState.PENDING, False, 1)
    (move,) = harness.store.journal.reallocations(job_id)
    assert [step for step, _ in move.times] == [
        Step.PLANNED,
        Step.CHECKPOINT_REQUESTED,
        Step.CHECKPOINTED,
        Step.REQUEUED,
        Step.RESHAPED,
        Step.RELEASED,
        Step.CONFIRMED,
    ]
    assert (move.source, move.target) == (Allocation.of({"n0": 1}), Allocation())
    harness.clock.advance(200)
    harness.run_until(harness.daemon(policy=PAUSES), seconds=8)
    assert harness.job(job_id).state is JobState.PENDING
    harness.targets = {job_id: {"n1": 2}}
    harness.run_until(harness.daemon(policy=PAUSES), seconds=20)
    assert harness.job(job_id).allocation == Allocation.of({"n1": 2})
    record = harness.store.jobs.get(job_id)
    assert (record.paused_at, record.num_restarts, harness.last_step(job_id)[0]) == (None, 1, Step.CONFIRMED)
    # The time of a pause is not part of the restart delay.
    assert record.mean_restart_delay_s is None


def test_that_no_job_is_paused_unless_pauses_are_allowed(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {}}
    harness.run_until(harness.daemon(policy=PolicyConfig()), seconds=20)
    assert harness.job(job_id).state is JobState.RUNNING
    assert harness.store.journal.reallocations(job_id) == ()


def test_that_without_a_confirmed_checkpoint_nothing_is_paused(harness: Harness) -> None:
    job_id = started(harness)
    harness.agents[job_id].answers = False
    harness.targets = {job_id: {}}
    harness.run_until(
        harness.daemon(policy=PAUSES), until=lambda: bool(harness.store.journal.reallocations()), seconds=8
    )
    harness.targets = {}
    harness.run_until(harness.daemon(policy=PAUSES), seconds=30)
    assert harness.last_step(job_id)[0] is Step.ROLLED_BACK
    assert harness.job(job_id).restart_count == 0


def test_that_a_pause_is_prolonged_and_runs_out_when_no_daemon_is_left(harness: Harness) -> None:
    job_id = paused(harness)
    daemon = harness.daemon(policy=PAUSES)
    for _ in range(8):
        daemon.round()
        harness.clock.advance(CONFIG.pause_ttl_s / 4)
    assert harness.job(job_id).state is JobState.PENDING
    harness.clock.advance(CONFIG.pause_ttl_s)
    assert harness.slurm.snapshot().job(job_id) is not None
    assert harness.job(job_id).allocation.num_gpus == 1


def test_that_what_a_pause_frees_goes_to_another_job(harness: Harness) -> None:
    one, two = started(harness, gpus=4), started(harness, gpus=4)
    harness.targets = {one: {}, two: {"n0": 4, "n1": 4}}
    harness.run_until(harness.daemon(policy=PAUSES), seconds=40)
    assert harness.job(two).allocation == Allocation.of({"n0": 4, "n1": 4})
    assert is_paused(harness, one)


def test_that_a_person_who_holds_a_paused_job_keeps_it_held(harness: Harness) -> None:
    job_id = paused(harness)
    harness.slurm.hold(job_id)
    harness.targets = {job_id: {"n1": 2}}
    harness.run_until(harness.daemon(policy=PAUSES), seconds=30)
    assert harness.job(job_id).held
    assert len(harness.store.journal.reallocations(job_id)) == 1
    harness.slurm.release(job_id)
    harness.run_until(harness.daemon(policy=PAUSES), seconds=20)
    assert harness.job(job_id).allocation == Allocation.of({"n1": 2})


def test_that_a_paused_job_given_a_begin_time_of_now_runs(harness: Harness) -> None:
    job_id = paused(harness)
    harness.slurm.set_begin_time(job_id, ahead_s=1)
    harness.clock.advance(1)
    harness.targets = {}
    harness.run_until(harness.daemon(policy=PAUSES), seconds=8)
    assert harness.job(job_id).state is JobState.RUNNING


def test_that_a_paused_job_given_a_begin_time_of_tomorrow_waits(harness: Harness) -> None:
    job_id = paused(harness)
    harness.slurm.set_begin_time(job_id, ahead_s=86400)
    harness.targets = {job_id: {"n1": 2}}
    harness.run_until(harness.daemon(policy=PAUSES), seconds=30)
    assert harness.job(job_id).state is JobState.PENDING
    assert len(harness.store.journal.reallocations(job_id)) == 1


def test_that_a_job_cancelled_while_it_is_paused_is_over(harness: Harness) -> None:
    job_id = paused(harness)
    harness.slurm.cancel(job_id)
    harness.run_until(harness.daemon(policy=PAUSES), seconds=8)
    assert harness.store.jobs.get(job_id).state is JobState.CANCELLED


@pytest.mark.parametrize("method", ["requeue_hold", "set_begin_time", "release"])
def test_that_an_unreachable_slurmctld_only_delays_a_pause(harness: Harness, method: str) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {}}
    harness.slurm.fail(method, SlurmUnavailable("socket timed out"))
    harness.run_until(harness.daemon(policy=PAUSES), seconds=20)
    assert is_paused(harness, job_id)
    assert not harness.job(job_id).held


def test_that_a_job_that_cannot_be_parked_is_released(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {}}
    harness.slurm.fail("set_begin_time", SlurmCommandError("access denied"))
    daemon = harness.daemon(policy=PAUSES)
    harness.run_until(daemon, until=lambda: bool(harness.store.journal.reallocations()), seconds=8)
    harness.targets = {}
    harness.run_until(daemon, seconds=20)
    step, reason = harness.last_step(job_id)
    assert (step, reason) == (Step.FAILED, "Slurm refused its begin time: access denied")
    assert not harness.job(job_id).held


# Every call in turn, as in test_state_machine.py, is in `make test-full`; here every third.
@pytest.mark.slow
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
def test_that_a_daemon_killed_at_any_call_of_a_pause_still_brings_the_job_back(
    clean_store: SqlStore, every: int
) -> None:
    for at in itertools.count(step=every):
        wipe(clean_store)
        harness = Harness(clean_store)
        job_id = started(harness)
        harness.targets = {job_id: {}}
        counter = itertools.count()
        mortal = harness.daemon(
            slurm=KilledAt(harness.slurm, counter, at),  # type: ignore[arg-type]
            store=KilledAt(harness.store, counter, at),  # type: ignore[arg-type]
            policy=PAUSES,
        )

        def is_done(harness: Harness = harness, job_id: str = job_id) -> bool:
            return is_paused(harness, job_id)

        died = False
        try:
            harness.run_until(mortal, until=is_done, seconds=30)
        except Killed:
            died = True
            harness.run_until(harness.daemon(policy=PAUSES), until=is_done, seconds=30)
        assert is_done(), f"call {at}"
        job = harness.job(job_id)
        assert (job.state, job.held, job.restart_count) == (JobState.PENDING, False, 1), f"call {at}"
        harness.targets = {job_id: {"n1": 1}}
        runs = lambda harness=harness, job_id=job_id: bool(harness.job(job_id).allocation)  # noqa: E731
        harness.run_until(harness.daemon(policy=PAUSES), until=runs, seconds=10)
        assert harness.job(job_id).allocation == Allocation.of({"n1": 1}), f"call {at}"
        if not died:
            assert at > 9, "too few calls were tried"
            break


def test_that_a_paused_job_that_waited_too_long_is_served_first(clean_store: SqlStore) -> None:
    """The real policy on a full cluster of one node: the objective pauses, `max_wait_s` resumes."""
    harness = Harness(clean_store, nodes=1)
    one, two = started(harness, gpus=2), started(harness, gpus=2)
    policy = PolicyConfig(objective="attained-work", max_wait_s=60.0)
    harness.targets = {one: {}}
    harness.run_until(harness.daemon(policy=policy), until=lambda: is_paused(harness, one), seconds=30)
    harness.clock.advance(61)
    harness.run_until(
        harness.daemon(policy=policy, decide=decide),
        until=lambda: bool(harness.job(one).allocation),
        seconds=40,
    )
    assert harness.job(one).state is JobState.RUNNING
    assert harness.job(two).state is JobState.RUNNING or is_paused(harness, two)
