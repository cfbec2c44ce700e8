"""The schedule of a hostile site: seeded, and with everything, however short the run."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.site.schedule import Kind, make_schedule


@pytest.mark.parametrize("minutes", [1.0, 3.0, 30.0])
def test_that_a_run_has_every_kind_in_order_of_time_and_within_it(minutes: float) -> None:
    schedule = make_schedule(minutes, 6, random.Random(3))
    counts = Counter(planned.kind for planned in schedule)
    assert counts.keys() == set(Kind)
    assert counts[Kind.SWEEP] == counts[Kind.RESERVATION] == max(int(minutes * 60 / 150), 1)
    times = [planned.at_s for planned in schedule]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < 60 * minutes
    assert {planned.node for planned in schedule} <= set(range(6))


def test_that_a_seed_defines_the_schedule() -> None:
    one, same, other = (make_schedule(3, 6, random.Random(seed)) for seed in (5, 5, 6))
    assert one == same
    assert one != other
