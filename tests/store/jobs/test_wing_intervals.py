"""The books of jobs that move in place: exactly what Slurm counts for their wings."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pollux_slurm.model import AccountedRun, Allocation, JobState
from pollux_slurm.store.contract.interface import JobObservation, Store
from tests.store.builders import at, observation, registration, report, token_of
from tests.store.jobs.test_allocation_intervals import accounted, intervals, row, see, takes_another_token

Changes = list[tuple[float, dict[str, int]]]


@pytest.fixture
def store(any_store: Store) -> Store:
    """A job that moves in place and runs on two GPUs since second 100, observed at 105."""
    any_store.jobs.register([registration(1, terms={"in_place": True})], at=at(90))
    see(any_store, runs([(100, {"n0": 2})]), 105)
    return any_store


def runs(changes: Changes, restarts: int = 0, **more: Any) -> JobObservation:
    """Return a job whose newest start began with the last change from no GPUs, and still runs."""
    had: list[dict[str, int]] = [{}, *(on for _, on in changes)]
    begun = [moment for (moment, _), before in zip(changes, had, strict=False) if not before]
    values: dict[str, Any] = {
        "started_at": at(begun[-1]) if begun else None,
        "restart_count": restarts,
        "changes": tuple((at(moment), Allocation.of(on)) for moment, on in changes),
        "in_place": True,
    }
    return observation(1, gpus=had[-1], **{**values, **more})


def waits(changes: Changes, restarts: int) -> JobObservation:
    return dataclasses.replace(
        runs(changes, restarts, started_at=None), state=JobState.PENDING, allocation=Allocation()
    )


def is_over(changes: Changes, restarts: int = 0, *, end: float) -> JobObservation:
    return dataclasses.replace(
        runs(changes, restarts), state=JobState.COMPLETED, ended_at=at(end), allocation=Allocation()
    )


def held(store: Store) -> list[str]:
    """Return what the job had in each interval."""
    return [str(one.allocation) for one in store.history.allocations("1")]


ALL = [(100, {"n0": 2}), (110, {"n0": 2, "n1": 1}), (120, {"n0": 2, "n1": 3}), (130, {"n1": 3}), (150, {})]


def test_that_every_change_between_two_rounds_is_recorded_to_the_second(store: Store) -> None:
    see(store, runs(ALL[:4]), 140)
    assert intervals(store) == [
        (100, 110, 0, False),
        (110, 120, 0, False),
        (120, 130, 0, False),
        (130, None, 0, False),
    ]
    assert held(store) == ["n0:2", "n0:2+n1:1", "n0:2+n1:3", "n1:3"]
    assert store.jobs.get("1").allocation == Allocation.of({"n1": 3})
    see(store, is_over(ALL, end=155), 160)
    assert intervals(store)[-1] == (130, 150, 0, False)
    assert row(store)["gpu_hours"] == pytest.approx((10 * 2 + 10 * 3 + 10 * 5 + 20 * 3) / 3600, abs=1e-6)
    assert not row(store)["estimated"]


def test_that_a_job_that_no_round_saw_run_has_all_its_intervals(any_store: Store) -> None:
    any_store.jobs.register([registration(1, terms={"in_place": True})], at=at(90))
    see(any_store, is_over(ALL, end=155), 160)
    assert [end for _, end, *_ in intervals(any_store)] == [110, 120, 130, 150]
    assert held(any_store)[-1] == "n1:3"
    assert not row(any_store)["estimated"]


def test_that_reading_the_same_again_changes_nothing(store: Store) -> None:
    see(store, runs(ALL[:3]), 125)
    before = intervals(store)
    see(store, runs(ALL[:3]), 126)
    assert intervals(store) == before


def test_that_a_change_to_the_same_gpus_is_none(store: Store) -> None:
    see(store, runs([(100, {"n0": 2}), (110, {"n0": 2}), (120, {"n0": 1})]), 130)
    assert intervals(store) == [(100, 120, 0, False), (120, None, 0, False)]


def test_that_the_time_between_two_starts_is_not_counted(store: Store) -> None:
    both: Changes = [(100, {"n0": 2}), (130, {})]
    see(store, waits(both, 1), 140)
    assert intervals(store) == [(100, 130, 0, False)]
    both.append((260, {"n1": 4}))
    see(store, runs(both, 1), 270)
    assert intervals(store) == [(100, 130, 0, False), (260, None, 1, False)]


def test_that_starts_between_two_rounds_have_their_numbers(store: Store) -> None:
    starts: Changes = [(100, {"n0": 2}), (120, {"n0": 1}), (130, {}), (260, {"n1": 4}), (261, {})]
    see(store, runs([*starts, (400, {"n2": 1})], 2), 410)
    assert intervals(store) == [
        (100, 120, 0, False),
        (120, 130, 0, False),
        (260, 261, 1, False),
        (400, None, 2, False),
    ]
    assert not row(store)["estimated"]


def test_that_a_start_whose_wing_never_ran_makes_nothing_an_estimate(store: Store) -> None:
    see(store, waits([(100, {"n0": 2}), (130, {})], 2), 200)
    assert intervals(store) == [(100, 130, 0, False)]
    assert not row(store)["estimated"]


# --------------------------------------------------------------------- after slurmctld has forgotten wings


def test_that_a_forgotten_wing_that_was_recorded_stays_as_it_was(store: Store) -> None:
    see(store, runs(ALL[:4]), 140)
    before = intervals(store)
    # The wing on n0 ended at 130, one of those on n1 began at 110, and the other at 120.
    see(store, runs([(110, {"n1": 1}), (120, {"n1": 3})]), 500)
    assert intervals(store) == before
    see(store, runs([(110, {"n1": 1}), (120, {"n1": 3}), (510, {"n1": 1})]), 520)
    assert intervals(store) == [*before[:3], (130, 510, 0, False), (510, None, 0, False)]


def test_that_the_changes_of_the_newest_start_alone_do_not_change_the_last_one(store: Store) -> None:
    see(store, waits([(100, {"n0": 2}), (130, {})], 1), 140)
    see(store, runs([(460, {"n1": 4})], 1), 470)
    assert intervals(store) == [(100, 130, 0, False), (460, None, 1, False)]
    assert not row(store)["estimated"]


def test_that_a_wing_that_was_forgotten_between_two_rounds_ends_at_an_estimate(store: Store) -> None:
    """Nothing shows that the wing on n0 ended at 130."""
    see(store, runs([(110, {"n1": 1}), (120, {"n1": 3})]), 500)
    assert intervals(store) == [(100, 110, 0, True), (110, 120, 0, False), (120, None, 0, False)]
    assert row(store)["estimated"]


def test_that_it_ends_at_the_round_where_nothing_has_changed_since(store: Store) -> None:
    see(store, runs(ALL[:2]), 115)
    see(store, runs([(100, {"n0": 2})]), 500)
    assert intervals(store) == [(100, 110, 0, False), (110, 500, 0, True), (500, None, 0, False)]
    assert held(store)[-1] == "n0:2"


@pytest.mark.parametrize(("reported", "ended"), [(118.0, 118), (None, 500)])
def test_that_a_forgotten_start_ended_at_its_last_report(
    store: Store, reported: float | None, ended: float
) -> None:
    if reported is not None:
        store.agent.report(token_of(1), report(1), at=at(reported))
    see(store, waits([], 1), 500)
    assert intervals(store) == [(100, ended, 0, True)]


def test_that_an_anchor_without_wings_ends_what_was_open_and_begins_nothing(store: Store) -> None:
    alone = observation(1, JobState.COMPLETING, restart_count=None, in_place=True)  # type: ignore[arg-type]
    see(store, alone, 500)
    assert intervals(store) == [(100, 500, 0, True)]
    see(store, dataclasses.replace(alone, state=JobState.COMPLETED, ended_at=at(600)), 610)
    assert intervals(store) == [(100, 500, 0, True)]


def test_that_a_missed_start_that_slurmctld_has_forgotten_makes_the_books_an_estimate(store: Store) -> None:
    see(store, waits([(100, {"n0": 2}), (130, {})], 1), 140)
    see(store, runs([(900, {"n0": 1})], 2), 910)
    assert intervals(store) == [(100, 130, 0, False), (900, None, 2, False)]
    assert row(store)["estimated"]


# ------------------------------------------------------------------------------------------------- the rest


def test_that_a_wing_whose_nodes_had_to_boot_begins_when_they_have(store: Store) -> None:
    see(store, runs([(112, {"n0": 2})]), 115)
    assert intervals(store) == [(112, None, 0, False)]


def test_that_the_gpus_of_an_ended_wing_may_be_spread_otherwise(any_store: Store) -> None:
    """Of a wing that is over, Slurm shows its nodes and how many GPUs it had in all."""
    any_store.jobs.register([registration(1, terms={"in_place": True})], at=at(90))
    see(any_store, runs([(100, {"n0": 4, "n1": 1})]), 105)
    see(any_store, is_over([(100, {"n0": 3, "n1": 2}), (150, {})], end=155), 160)
    assert intervals(any_store) == [(100, 150, 0, False)]
    assert held(any_store) == ["n0:4+n1:1"]


def test_that_a_new_token_counts_no_second_twice(store: Store) -> None:
    takes_another_token(store, 160)
    see(store, runs([(100, {"n0": 2})]), 165)
    assert intervals(store) == [(160, None, 0, False)]


def test_that_a_job_that_vanished_ends_like_any_other(store: Store) -> None:
    see(store, observation(1, JobState.FAILED, ended_at=at(140), estimated=True), 900)
    assert intervals(store) == [(100, 140, 0, True)]


def test_that_accounting_corrects_no_job_that_moves_in_place(store: Store) -> None:
    """Its GPUs are in other jobs: slurmdbd has an hour of the anchor's without any."""
    see(store, observation(1, JobState.FAILED, ended_at=at(140), estimated=True), 900)
    assert store.jobs.estimated(since=at(0)) == ()
    run: AccountedRun = accounted(0, 95, 3600, 3505, state=JobState.COMPLETED, num_gpus=0)
    assert store.jobs.correct_estimated([run]) == ()
    assert intervals(store) == [(100, 140, 0, True)]


def test_that_the_job_is_recorded_as_one_that_moves_in_place(store: Store) -> None:
    assert store.jobs.get("1").terms.in_place


def test_that_reads_between_changes_within_one_second_lose_nothing(store: Store) -> None:
    """A wing on n1 joined at 110.1, one on n0 left at 110.8, and a third came and went in between."""
    so_far: Changes = [(100, {"n0": 2}), (110, {"n0": 2, "n1": 1, "n2": 1})]
    see(store, runs(so_far), 110)
    whole: Changes = [*so_far, (110, {"n1": 1}), (120, {"n1": 2}), (120, {"n1": 1})]
    see(store, runs(whole), 125)
    assert intervals(store) == [(100, 110, 0, False), (110, 110, 0, False), (110, None, 0, False)]
    assert held(store)[-1] == "n1:1"
    assert not row(store)["estimated"]


def test_that_a_read_between_an_end_and_a_start_on_one_node_loses_nothing(store: Store) -> None:
    see(store, runs([(100, {"n0": 2}), (110, {"n0": 2, "n1": 2})]), 115)
    see(store, runs([(100, {"n0": 2}), (110, {"n0": 2, "n1": 2}), (120, {"n0": 2})]), 120)
    swapped: Changes = [(110, {"n0": 2, "n1": 2}), (120, {"n0": 2, "n1": 5}), (120, {"n0": 2, "n1": 3})]
    see(store, runs([(100, {"n0": 2}), *swapped]), 125)
    assert intervals(store)[2:] == [(120, 120, 0, False), (120, None, 0, False)]
    assert held(store)[-1] == "n0:2+n1:3"
