"""First come, first served, with reservations, on pools of GPUs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.simulator.engine.backfill import Running, Waiting, backfill, pack, pack_pool


def waiting(**jobs: tuple[int, float]) -> Mapping[str, Waiting]:
    return {name: Waiting(num_gpus=gpus, limit_s=limit_s) for name, (gpus, limit_s) in jobs.items()}


RUNNING = (Running(pool="t4", num_gpus=4, until_s=1100.0),)


def test_that_jobs_start_in_their_order_while_they_fit() -> None:
    queue = waiting(a=(2, 10), b=(1, 10), c=(2, 10))
    assert backfill(1000.0, {"t4": 4}, (), queue).pools == {"a": "t4", "b": "t4"}


def test_that_a_short_job_is_backfilled_and_a_long_one_is_not() -> None:
    """All 8 GPUs are a's from 1100 on: what ends by then may use the 4 that are free now."""
    queue = waiting(a=(8, 50), long=(2, 101), short=(2, 100))
    assert backfill(1000.0, {"t4": 4}, RUNNING, queue).pools == {"short": "t4"}


def test_that_a_later_reservation_is_kept_as_well() -> None:
    """a has 6 of 8 from 1100 on, b all from 1150 on: c, on the 2 beside a, would be in the way of b."""
    queue = waiting(a=(6, 50), b=(8, 50), c=(2, 151), d=(2, 150))
    assert backfill(1000.0, {"t4": 4}, RUNNING, queue).pools == {"d": "t4"}


def test_that_a_job_beyond_its_limit_is_expected_to_end() -> None:
    late = (Running(pool="t4", num_gpus=4, until_s=900.0),)
    queue = waiting(a=(8, 50), b=(2, 5))
    assert backfill(1000.0, {"t4": 4}, late, queue).pools == {}


def test_that_gpus_without_a_reservation_are_spare() -> None:
    """Of 8, 4 are free until a has 6 of them from 1100 to 1150: 2 are free for ever."""
    found = backfill(1000.0, {"t4": 4}, RUNNING, waiting(a=(6, 50)))
    assert (found.pools, found.spare) == ({}, {"t4": 2})
    assert backfill(1000.0, {"t4": 4}, RUNNING, waiting(a=(3, 50))).spare == {"t4": 1}
    assert backfill(1000.0, {"t4": 4}, RUNNING, waiting(a=(8, 50))).spare == {"t4": 0}
    assert backfill(1000.0, {"t4": 4, "a100": 2}, (), waiting(a=(4, 5))).spare == {"t4": 0, "a100": 2}
    assert backfill(1000.0, {"t4": 0}, RUNNING, waiting(a=(1, 5))).spare == {"t4": 0}


def test_that_a_job_takes_the_pool_in_which_it_starts_first() -> None:
    queue = waiting(a=(4, 10), b=(4, 10), c=(1, 10))
    assert backfill(1000.0, {"t4": 4, "a100": 4}, (), queue).pools == {"a": "t4", "b": "a100"}


def test_that_a_job_too_large_for_the_pool_delays_no_other() -> None:
    assert backfill(1000.0, {"t4": 4}, (), waiting(a=(5, 10), b=(4, 10))).pools == {"b": "t4"}


@given(
    free=st.integers(0, 6),
    running=st.lists(st.tuples(st.integers(1, 4), st.floats(1, 100)), max_size=4),
    queue=st.lists(st.tuples(st.integers(1, 6), st.floats(1, 100)), max_size=6),
)
def test_that_no_job_is_delayed_by_later_ones(
    free: int, running: list[tuple[int, float]], queue: list[tuple[int, float]]
) -> None:
    """With or without the rest of the queue, the same ones of the first half start."""
    ahead = [Running(pool="t4", num_gpus=gpus, until_s=until_s) for gpus, until_s in running]
    jobs = {index: Waiting(num_gpus=gpus, limit_s=limit_s) for index, (gpus, limit_s) in enumerate(queue)}
    some = {index: job for index, job in jobs.items() if index < len(jobs) // 2}
    all_started = backfill(0.0, {"t4": free}, ahead, jobs).pools
    assert [index for index in all_started if index in some] == list(
        backfill(0.0, {"t4": free}, ahead, some).pools
    )
    assert sum(jobs[index].num_gpus for index in all_started) <= free


def test_that_a_job_is_packed_where_it_fits_tightest() -> None:
    assert pack(2, {0: 4, 1: 2, 2: 3}) == ((1, 2),)
    assert pack(6, {0: 4, 1: 2, 2: 3}) == ((0, 4), (2, 2))


@pytest.mark.parametrize(("kind", "allocation"), [("t4", ((0, 1),)), ("a100", ((1, 1),))])
def test_that_a_pool_is_packed_by_itself(kind: str, allocation: tuple[tuple[int, int], ...]) -> None:
    assert pack_pool(1, [2, 1, 0], ["t4", "a100", "a100"], kind) == allocation
