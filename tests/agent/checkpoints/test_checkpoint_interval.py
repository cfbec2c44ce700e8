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


def test_that_a_cost_beyond_what_lasts_between_failures_is_no_reason_to_stop_writing() -> None:
    assert optimal_interval_s(300.0, 100.0) == 100.0


def test_that_the_first_comes_early_and_the_rest_as_the_cost_says() -> None:
    pace = CheckpointInterval(mtbf_s=500_000.0)
    assert pace.interval_s == 60.0
    pace.add_blocked_time(0.25)
    # √(2 · 0.25 · 500 000) = 500, and the higher terms take off 0.17 %.
    assert pace.interval_s == pytest.approx(500.0, rel=0.002)
    pace.add_write_time(90.0)
    assert pace.interval_s == 900.0
    pace.add_blocked_time(1e6)
    assert pace.interval_s == 3600.0


def test_that_the_users_own_interval_stays() -> None:
    pace = CheckpointInterval(mtbf_s=1e6, fixed_s=5.0)
    pace.add_blocked_time(100.0)
    pace.add_write_time(1000.0)
    assert pace.interval_s == 5.0
