"""Slurm's no: what a job does whose new shape Slurm does not start, and what the next rounds do."""

from __future__ import annotations

import contextlib

import pytest

from pollux_slurm.model import Allocation, JobState, SlurmAnswer
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.crashing import Killed, KilledAt
from tests.daemon.enact.test_kept_places import Calls
from tests.daemon.enact.test_state_machine import started
from tests.daemon.harness import Harness
from tests.store_fixtures import wipe


def refuses_more_than_one(reason: str):  # type: ignore[no-untyped-def]
    return lambda shape: reason if shape.num_gpus > 1 else None


@pytest.mark.parametrize(
    ("reason", "answer", "verb"),
    [
        ("BadConstraints", SlurmAnswer.NEVER, "refused"),
        pytest.param("PartitionNodeLimit", SlurmAnswer.NEVER, "refused", marks=pytest.mark.full),
        ("Resources", SlurmAnswer.NOT_NOW, "refused"),
        ("Priority", SlurmAnswer.NOT_NOW, "did not start"),
    ],
)
def test_that_a_refused_job_is_back_where_it_ran_and_is_left_alone(
    harness: Harness, reason: str, answer: SlurmAnswer, verb: str
) -> None:
    """With BadConstraints Slurm also holds the job, which no person did."""
    job_id = started(harness)
    harness.targets = {job_id: {"n0": 2}}
    harness.slurm.refuses = refuses_more_than_one(reason)
    harness.run_until(harness.daemon(), seconds=240)
    job = harness.job(job_id)
    assert (job.state, job.allocation) == (JobState.RUNNING, Allocation.of({"n0": 1}))
    assert job.restart_count == 1, "one try, and none after it"
    step, why = harness.last_step(job_id)
    assert step is Step.CONFIRMED
    assert why == f"instead of n0:2, which Slurm {verb} ({reason})"
    (refusal,) = harness.store.jobs.get(job_id).refusals
    assert (refusal.allocation, refusal.answer, refusal.reason) == (Allocation.of({"n0": 2}), answer, reason)
    because = harness.store.jobs.get(job_id).not_moved_reason or ""
    assert because.startswith(f"Slurm {verb} n0:2 at ")
    assert f" UTC ({reason})" in because
    harness.clock.advance(600)
    harness.slurm.refuses = lambda _shape: None
    harness.run_until(harness.daemon(), seconds=40)
    assert harness.job(job_id).allocation == Allocation.of({"n0": 2}), "tried again after ten minutes"


def test_that_a_job_does_not_wait_for_a_limit_that_keeps_it_from_its_new_shape(harness: Harness) -> None:
    """Another job of its user has just taken what the limit leaves; it goes back at once."""
    job_id = started(harness)
    harness.targets = {job_id: {"n0": 2}}
    harness.slurm.refuses = refuses_more_than_one("QOSMaxGRESPerUser")
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.is_at(Step.REQUEUED), seconds=40)
    harness.run_until(daemon, until=lambda: harness.job(job_id).state is JobState.RUNNING, seconds=10)
    assert harness.job(job_id).allocation == Allocation.of({"n0": 1})


def test_that_a_reason_from_before_the_release_is_no_answer(harness: Harness) -> None:
    """Slurm shows that of the job's own reservation until it tries the job again."""
    job_id = started(harness)
    harness.targets = {job_id: {"n0": 2}}
    harness.slurm.refuses = lambda _shape: "Reservation"
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.is_at(Step.RELEASED), seconds=40)
    harness.slurm.set_job(job_id, blocked_because="Slurm does not start it now (Reservation)")
    harness.run_until(daemon, seconds=4)
    harness.slurm.set_job(job_id, blocked_because=None)
    harness.slurm.refuses = lambda _shape: None
    harness.run_until(daemon, seconds=10)
    assert harness.job(job_id).allocation == Allocation.of({"n0": 2})
    assert not harness.store.jobs.get(job_id).refusals


def test_that_a_new_configuration_of_slurm_ends_it_at_once(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n0": 2}}
    harness.slurm.refuses = refuses_more_than_one("PartitionNodeLimit")
    daemon = harness.daemon()
    harness.run_until(daemon, seconds=40)
    assert harness.job(job_id).allocation == Allocation.of({"n0": 1})
    assert harness.job(job_id).restart_count == 1
    harness.slurm.configured = "MaxNodes=2"
    harness.slurm.refuses = lambda _shape: None
    harness.run_until(daemon, seconds=30)
    assert harness.job(job_id).allocation == Allocation.of({"n0": 2})


def test_that_the_memory_outlives_the_daemon(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n0": 2}}
    harness.slurm.refuses = refuses_more_than_one("BadConstraints")
    harness.run_until(harness.daemon(), until=lambda: harness.job(job_id).restart_count == 1, seconds=60)
    harness.run_until(harness.daemon(owner="next"), seconds=100)
    assert harness.job(job_id).restart_count == 1
    assert harness.job(job_id).allocation == Allocation.of({"n0": 1})


def test_that_a_job_that_slurm_held_for_its_shape_trains_again(harness: Harness) -> None:
    """A daemon that took the hold for a person's left it so: it was held without an open move."""
    job_id = started(harness, gpus=2)
    harness.slurm.requeue_hold(job_id)
    harness.clock.advance(1)
    harness.slurm.snapshot()
    harness.slurm.set_job(job_id, reason="BadConstraints", held=True, held_since_requeue=False)
    harness.run_until(harness.daemon(), seconds=30)
    assert harness.job(job_id).allocation == Allocation.of({"n0": 2})
    assert "BadConstraints" in (harness.last_step(job_id)[1] or "")


def test_that_a_person_s_hold_after_slurms_stays(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n0": 2}}
    harness.slurm.refuses = refuses_more_than_one("BadConstraints")
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.job(job_id).reason == "BadConstraints", seconds=30)
    harness.slurm.hold(job_id)
    harness.run_until(daemon, seconds=30)
    assert harness.job(job_id).held
    assert harness.last_step(job_id) == (Step.FAILED, "the job was held externally")


def test_that_a_shape_that_never_ran_and_that_slurm_holds_is_left_to_its_owner(harness: Harness) -> None:
    harness.slurm.refuses = lambda _shape: "BadConstraints"
    job_id = harness.submit(gpus=2)
    harness.slurm.snapshot()
    assert harness.job(job_id).held
    harness.run_until(harness.daemon(), seconds=20)
    assert harness.job(job_id).held
    assert not harness.store.journal.reallocations(job_id)


def test_that_a_waiting_job_that_is_refused_waits_for_another_shape(harness: Harness) -> None:
    """Nodes with more GPUs than Slurm gives out: the pending job gets what it may have."""
    blocker = harness.submit_unmanaged(gpus=4), harness.submit_unmanaged(gpus=4)
    job_id = harness.submit(gpus=4)
    harness.slurm.refuses = lambda shape: "PartitionNodeLimit" if shape.num_nodes > 1 else None
    for one in blocker:
        harness.slurm.finish(one)
    harness.slurm.set_node("n0", available=False)
    harness.slurm.set_node("n1", available=False)
    harness.targets = {job_id: {"n0": 2, "n1": 2}}
    harness.slurm.set_node("n0", available=True)
    harness.slurm.set_node("n1", available=True)
    harness.run_until(harness.daemon(), seconds=60)
    job = harness.job(job_id)
    assert job.state is JobState.RUNNING
    assert job.allocation.num_nodes == 1


# Every call in turn, as in test_state_machine.py, is in `make test-full`; here every third.
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
def test_that_a_kill_at_any_instant_of_a_refused_move_leaves_the_job_where_it_ran(
    harness: Harness, clean_store: SqlStore, every: int
) -> None:
    def run(harness: Harness, calls: Calls, *, dies_at: int = -1) -> str:
        job_id = started(harness)
        harness.slurm.refuses = refuses_more_than_one("BadConstraints")
        harness.targets = {job_id: {"n0": 2}}
        doomed = harness.daemon(
            slurm=KilledAt(harness.client, calls, dies_at), store=KilledAt(harness.store, calls, dies_at)
        )
        with contextlib.suppress(Killed):
            harness.run_until(doomed, until=lambda: is_back(harness, job_id), seconds=40)
        return job_id

    calls, first = Calls(), list[int]()
    harness.slurm.before["requeue_hold"] = lambda: first.append(calls.made)
    run(harness, calls)
    for at in range(first[0], calls.made, every):
        wipe(clean_store)
        fresh = Harness(clean_store)
        job_id = run(fresh, Calls(), dies_at=at)
        fresh.clock.advance(15)
        fresh.run_until(
            fresh.daemon(owner="next"),
            until=lambda fresh=fresh, job_id=job_id: is_back(fresh, job_id),  # type: ignore[misc]
            seconds=60,
        )
        assert is_back(fresh, job_id), at


def is_back(harness: Harness, job_id: str) -> bool:
    moves, job = harness.store.journal.reallocations(job_id), harness.job(job_id)
    is_over = bool(moves) and not harness.open_moves()
    return is_over and (job.state, job.allocation) == (JobState.RUNNING, Allocation.of({"n0": 1}))
