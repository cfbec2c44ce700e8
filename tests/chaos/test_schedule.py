"""The schedule: seeded, bounded, with every kind and every point of a reallocation."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.chaos.faults import KINDS
from tests.chaos.schedule import DAEMON_KILL, POINTS, SHARES, make_schedule


def test_that_every_kind_of_fault_can_be_done() -> None:
    assert {*KINDS, DAEMON_KILL} == set(SHARES)  # `Run` itself does that one


@pytest.mark.parametrize("num_faults", [0, 5, len(SHARES), 40, 200])
def test_that_a_schedule_has_as_many_faults_as_asked_and_each_kind_in_its_share(num_faults: int) -> None:
    schedule = make_schedule(num_faults, random.Random(3))
    counts = Counter(planned.kind for planned in schedule)
    assert len(schedule) == num_faults
    assert len(counts) == min(num_faults, len(SHARES))
    for kind, count in counts.items():
        assert count <= max(1, SHARES[kind] * num_faults / sum(SHARES.values()) + 1)


def test_that_every_point_has_its_turn_before_one_has_a_second() -> None:
    points = Counter(planned.point for planned in make_schedule(200, random.Random(3)) if planned.point)
    assert set(points) == set(POINTS)
    assert max(points.values()) - min(points.values()) <= 1
    assert all(
        planned.point is None
        for planned in make_schedule(50, random.Random(1))
        if planned.kind != DAEMON_KILL
    )


def test_that_a_seed_defines_the_order() -> None:
    one, same, other = (make_schedule(60, random.Random(seed)) for seed in (5, 5, 6))
    assert one == same
    assert one != other
