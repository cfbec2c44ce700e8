"""How often checkpoints are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.agent.checkpoints.checkpoint_interval import CheckpointInterval, optimal_interval_s


def lost(interval_s: float, cost_s: float, mtbf_s: float) -> float:
    """The share of time that checkpoints and repeated work take, to first order."""
    return cost_s / interval_s + (interval_s + cost_s) / 2 / mtbf_s


@given(cost_s=st.floats(0.001, 100), mtbf_s=st.floats(1e5, 1e8))
def test_that_the_interval_loses_least_time(cost_s: float, mtbf_s: float) -> None:
    best = optimal_interval_s(cost_s, mtbf_s)
    for other in (0.7, 1.4):
        assert lost(best, cost_s, mtbf_s) < lost(other * best, cost_s, mtbf_s)


def test_that_checkpoints_are_written_even_if_one_costs_more_than_the_time_between_failures() -> None:
    assert optimal_interval_s(300.0, 100.0) == 100.0


def test_that_the_first_interval_is_short_and_the_next_follow_from_the_cost() -> None:
    interval = CheckpointInterval(mtbf_s=500_000.0)
    assert interval.interval_s == 60.0
    interval.add_blocked_time(0.25)
    # √(2 · 0.25 · 500 000) = 500, and the higher terms take off 0.17 %.
    assert interval.interval_s == pytest.approx(500.0, rel=0.002)
    interval.add_write_time(90.0)
    assert interval.interval_s == 900.0
    interval.add_blocked_time(1e6)
    assert interval.interval_s == 3600.0


def test_that_the_users_own_interval_stays() -> None:
    interval = CheckpointInterval(mtbf_s=1e6, fixed_s=5.0)
    interval.add_blocked_time(100.0)
    interval.add_write_time(1000.0)
    assert interval.interval_s == 5.0
