"""Allocation intervals by Slurm's own clock: runs, suspensions, estimates, and their correction."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import select

from pollux_slurm.model import AccountedRun, Allocation, JobState
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.store.contract.interface import JobObservation, Store
from pollux_slurm.store.schema import AllocationRow
from tests.store.builders import (
    at,
    decision_of,
    observation,
    problem_of,
    registration,
    report,
    token_of,
)
from tests.store.schema.test_views import rows_of

TWO = {"n0": 2}
ALLOCATION = Allocation.of(TWO)


@pytest.fixture
def store(any_store: Store) -> Store:
    """One job that runs on two GPUs since second 100, and was observed by a round at 105."""
    any_store.jobs.register([registration(1)], at=at(90))
    any_store.jobs.observe([observation(1, gpus=TWO, started_at=at(100), submitted_at=at(80))], at=at(105))
    any_store.rounds.record(problem_of([1]), decision_of([1]), shadow=False, at=at(105))
    return any_store


def intervals(store: Store) -> list[tuple[float, float | None, int | None, bool]]:
    """Return start, end, restart count of each interval, and whether it is estimated."""

    def second(moment: datetime | None) -> float | None:
        return None if moment is None else (moment - at(0)).total_seconds()

    return [
        (second(one.started_at) or 0.0, second(one.ended_at), one.restart_count, one.estimated)
        for one in store.history.allocations("1")
    ]


def see(store: Store, seen: JobObservation, second: float) -> None:
    store.jobs.observe([seen], at=at(second))


def waits(restarts: int, submitted: float) -> JobObservation:
    return observation(1, JobState.PENDING, restart_count=restarts, submitted_at=at(submitted))


def runs(restarts: int, start: float, submitted: float, **changes: Any) -> JobObservation:
    return observation(
        1, gpus=TWO, started_at=at(start), submitted_at=at(submitted), restart_count=restarts, **changes
    )


def is_over(state: JobState, restarts: int, start: float, end: float, **changes: Any) -> JobObservation:
    return observation(
        1,
        state,
        started_at=at(start),
        ended_at=at(end),
        restart_count=restarts,
        last_allocation=ALLOCATION,
        **changes,
    )


def row(store: Store) -> dict[str, Any]:
    (found,) = rows_of(store, "SELECT gpu_hours, estimated, state, requeues FROM job_goodput")
    return found


def test_that_time_in_the_queue_between_two_rounds_is_not_counted(store: Store) -> None:
    see(store, runs(1, 368, submitted=140), 400)
    assert intervals(store) == [(100, 140, 0, True), (368, None, 1, False)]


def test_that_an_end_that_slurm_shows_is_exact(store: Store) -> None:
    ended = observation(1, JobState.COMPLETING, started_at=at(100), ended_at=at(131))
    see(store, ended, 132)
    see(store, waits(1, submitted=140), 141)
    assert intervals(store) == [(100, 131, 0, False)]
    assert not row(store)["estimated"]


def test_that_a_run_requeued_within_a_second_of_its_start_is_exact(store: Store) -> None:
    see(store, waits(1, submitted=101), 120)
    assert intervals(store) == [(100, 101, 0, False)]


def test_that_an_end_from_the_time_of_a_round_is_estimated(store: Store) -> None:
    """A round saw the run at 105, by the clock of a host that may be wrong."""
    see(store, waits(1, submitted=106), 120)
    assert intervals(store) == [(100, 106, 0, True)]


def test_that_a_slow_clock_does_not_end_a_run_before_slurm_does(store: Store) -> None:
    see(store, waits(1, submitted=140), 106)
    assert intervals(store) == [(100, 140, 0, True)]


def test_that_the_same_allocation_after_a_requeue_is_another_run(store: Store) -> None:
    see(store, runs(1, 150, submitted=120), 160)
    see(store, is_over(JobState.COMPLETED, 1, 150, 200), 210)
    assert intervals(store) == [(100, 120, 0, True), (150, 200, 1, False)]
    assert row(store)["gpu_hours"] == pytest.approx((20 + 50) * 2 / 3600, abs=1e-6)


def test_that_a_job_that_ran_between_two_rounds_is_recorded(any_store: Store) -> None:
    any_store.jobs.register([registration(1)], at=at(60))
    see(any_store, is_over(JobState.TIMEOUT, 0, 3, 75), 80)
    assert intervals(any_store) == [(3, 75, 0, False)]
    found = row(any_store)
    assert (found["state"], bool(found["estimated"])) == ("timeout", False)
    assert found["gpu_hours"] == pytest.approx(72 * 2 / 3600, abs=1e-6)


def test_that_a_job_cancelled_in_the_queue_has_no_interval(any_store: Store) -> None:
    any_store.jobs.register([registration(1)], at=at(60))
    seen = observation(1, JobState.CANCELLED, started_at=at(70), ended_at=at(70))
    see(any_store, seen, 80)
    assert intervals(any_store) == []
    assert not row(any_store)["estimated"]


def test_that_suspensions_are_not_counted(store: Store) -> None:
    paused = {"suspended_at": at(120), "counted_s": 20.0}
    see(store, observation(1, JobState.SUSPENDED, TWO, started_at=at(100), **paused), 125)
    assert intervals(store) == [(100, 120, 0, False)]
    # Between two rounds: resumed, and suspended again ten seconds later until 150.
    see(store, runs(0, 100, submitted=80, resumed_at=at(150), counted_s=30.0), 155)
    assert intervals(store) == [(100, 120, 0, False), (120, 130, 0, False), (150, None, 0, False)]
    see(store, is_over(JobState.COMPLETED, 0, 100, 160, resumed_at=at(150), counted_s=30.0), 170)
    assert sum((end or 0) - start for start, end, *_ in intervals(store)) == 40


def test_that_a_suspension_between_two_rounds_is_not_counted(store: Store) -> None:
    see(store, is_over(JobState.COMPLETED, 0, 100, 160, resumed_at=at(150), counted_s=20.0), 170)
    assert intervals(store) == [(100, 120, 0, False), (150, 160, 0, False)]


def test_that_gpus_taken_from_a_running_job_end_when_slurm_says(store: Store) -> None:
    now = {"n0": 1}
    seen = observation(1, gpus=now, started_at=at(100), changes=((at(110), Allocation.of(now)),))
    see(store, seen, 115)
    assert intervals(store) == [(100, 110, 0, False), (110, None, 0, False)]


def test_that_a_start_that_slurm_moved_moves_the_interval(store: Store) -> None:
    see(store, runs(0, 112, submitted=80), 115)
    assert intervals(store) == [(112, None, 0, False)]


def test_that_a_job_with_an_unobserved_run_is_estimated(store: Store) -> None:
    store.agent.report(token_of(1), report(1), at=at(118))
    see(store, runs(2, 400, submitted=390), 410)
    assert intervals(store) == [(100, 118, 0, True), (400, None, 2, False)]
    assert row(store)["estimated"]


def accounted(restarts: int, start: float, end: float | None, elapsed: float, **changes: Any) -> AccountedRun:
    values: dict[str, Any] = {
        "slurm_job_id": "1",
        "state": JobState.PENDING if end is not None else JobState.RUNNING,
        "started_at": at(start),
        "ended_at": None if end is None else at(end),
        "elapsed_s": elapsed,
        "num_gpus": 2,
        "nodes": ("n0",),
    }
    return AccountedRun(**{**values, **changes})


def run_missed_in_the_midst(store: Store) -> None:
    """Let job 1 run on one node, again on one, unobserved, and on two; slurmdbd has all three runs."""
    store.jobs.register([registration(1)], at=at(90))
    store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(100))], at=at(105))
    now = observation(1, gpus={"n0": 1, "n1": 1}, started_at=at(400), restart_count=2)
    store.jobs.observe([now], at=at(410))
    accounted_runs = [accounted(0, 100, 130, 30), accounted(1, 200, 385, 185), accounted(2, 400, None, 10)]
    assert store.jobs.correct_estimated(accounted_runs) == ("1",)


def test_that_accounting_adds_runs_and_corrects_estimates(store: Store) -> None:
    see(store, runs(2, 400, submitted=390), 410)
    assert [name for name, _ in store.jobs.estimated(since=at(0))] == ["1"]
    accounted_runs = [
        accounted(0, 100, 130, 25, num_gpus=2),
        accounted(1, 200, 385, 185, num_gpus=3, nodes=("n0", "n1")),
        accounted(2, 400, None, 10),
    ]
    assert store.jobs.correct_estimated(accounted_runs) == ("1",)
    assert intervals(store) == [(100, 125, 0, False), (200, 385, 1, False), (400, None, 2, False)]
    middle = store.history.allocations("1")[1]
    assert middle.allocation == Allocation.of({"n0": 2, "n1": 1})
    assert not row(store)["estimated"]
    assert store.jobs.estimated(since=at(0)) == ()
    # The current run stays the newest, although earlier ones were inserted after it.
    see(store, is_over(JobState.COMPLETED, 2, 400, 500), 510)
    assert intervals(store)[-1] == (400, 500, 2, False)


def test_that_accounting_shows_how_a_job_ended_that_slurmctld_dropped(store: Store) -> None:
    guess = observation(1, JobState.FAILED, ended_at=at(1000), estimated=True)
    see(store, guess, 1000)
    assert row(store)["estimated"]
    assert store.jobs.correct_estimated([accounted(0, 100, 160, 60, state=JobState.TIMEOUT)]) == ("1",)
    assert intervals(store) == [(100, 160, 0, False)]
    found = store.jobs.get("1")
    assert (found.state, found.finished_at) == (JobState.TIMEOUT, at(160))


def test_that_sums_by_day_follow_a_correction(store: Store) -> None:
    see(store, observation(1, JobState.FAILED, ended_at=at(200_000), estimated=True), 200_000)
    store.jobs.correct_estimated([accounted(0, 100, 160, 60, state=JobState.COMPLETED)])
    days = rows_of(store, "SELECT allocated_s FROM allocation_days")
    assert [day["allocated_s"] for day in days] == pytest.approx([60.0])


def test_that_incomplete_accounting_leaves_a_job_estimated(store: Store) -> None:
    see(store, runs(2, 400, submitted=390), 410)
    assert store.jobs.correct_estimated([accounted(2, 400, None, 10)]) == ()
    assert store.jobs.correct_estimated([accounted(0, 100, None, 310), accounted(2, 400, None, 10)]) == ()
    assert row(store)["estimated"]


def test_that_accounting_does_not_change_exact_intervals(store: Store) -> None:
    see(store, is_over(JobState.COMPLETED, 0, 100, 160), 170)
    assert store.jobs.correct_estimated([accounted(0, 100, 999, 899)]) == ()
    assert intervals(store) == [(100, 160, 0, False)]


def takes_another_token(store: Store, second: float, **changes: Any) -> None:
    job = registration(1, terms={"token_sha256": hash_token(token_of("another"))}, **changes)
    assert store.jobs.register([job], at=at(second)) == ()


def all_stretches(store: Store) -> list[tuple[float, float | None]]:
    """Return start and end of each interval, of all tokens."""
    with store.database.read() as connection:  # type: ignore[attr-defined]
        rows = connection.execute(
            select(AllocationRow.started_at, AllocationRow.ended_at).order_by(AllocationRow.started_at)
        )
        return [
            ((start - at(0)).total_seconds(), end and (end - at(0)).total_seconds()) for start, end in rows
        ]


def test_that_a_new_token_during_a_run_counts_no_second_twice(store: Store) -> None:
    takes_another_token(store, 160)
    see(store, runs(0, 100, submitted=80), 160)
    assert all_stretches(store) == [(100, 160), (160, None)]
    see(store, is_over(JobState.COMPLETED, 0, 100, 220), 230)
    assert all_stretches(store) == [(100, 160), (160, 220)]
    accounted_runs = [accounted(0, 100, 221, 121, state=JobState.COMPLETED)]
    assert store.jobs.correct_estimated(accounted_runs) == ("1",)
    assert all_stretches(store) == [(100, 160), (160, 221)]
    assert intervals(store) == [(160, 221, 0, False)]


def test_that_a_new_token_of_a_suspended_run_counts_no_second_twice(store: Store) -> None:
    takes_another_token(store, 160)
    see(store, runs(0, 100, submitted=80, resumed_at=at(300), counted_s=75), 310)
    assert all_stretches(store) == [(100, 160), (160, 175), (300, None)]


def test_that_a_run_of_the_earlier_token_ends_with_its_requeue(store: Store) -> None:
    takes_another_token(store, 400, submitted_at=at(140), restart_count=1)
    see(store, runs(1, 368, submitted=140), 400)
    assert all_stretches(store) == [(100, 140), (368, None)]


def test_that_only_the_newest_row_of_a_job_is_estimated(store: Store) -> None:
    """Slurm's records of a job id are those of its newest row, whatever its tokens were."""
    takes_another_token(store, 160)
    see(store, runs(0, 100, submitted=80), 160)
    assert [name for name, _ in store.jobs.estimated(since=at(0))] == ["1"]
