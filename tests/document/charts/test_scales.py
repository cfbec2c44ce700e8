"""Axes and their ticks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.document.charts.scales import duration_axis, linear_axis, log_axis, value_axis


def test_that_a_linear_axis_holds_zero_and_all_values() -> None:
    assert (linear_axis("x", [3.0, 61.0]).low, linear_axis("x", [3.0, 61.0]).high) == (0, 61)
    assert linear_axis("x", [-2.0, 1.0]).at(-0.5) == 0.5


def test_that_durations_have_round_ticks() -> None:
    axis = duration_axis("time", [70.0, 7000.0])
    assert axis.ticks == (60, 120, 300, 600, 1800, 3600, 7200)
    assert axis.at(60) == 0
    assert axis.at(7200) == 1
    assert 0 < axis.at(600) < axis.at(3600) < 1


def test_that_ratios_are_as_far_from_one_both_ways() -> None:
    axis = log_axis("ρ", [0.6, 1.7], around=1.0)
    assert axis.at(1) - axis.at(0.5) == pytest.approx(axis.at(2) - axis.at(1))
    assert axis.ticks == (0.5, 1, 2)
    assert 0 < log_axis("ρ", [1.0], around=1.0).at(1) < 1


def test_that_few_values_are_ticks_themselves() -> None:
    axis = value_axis("delay", [0, 121, 30])
    assert axis.ticks == (0, 30, 121)
    assert 0 < axis.at(0) < axis.at(121) < 1


@given(values=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=5))
def test_that_any_values_make_an_axis(values: list[float]) -> None:
    finite = [value for value in values if abs(value) < 1e30]
    for axis in (linear_axis("x", finite), log_axis("x", finite), duration_axis("x", finite)):
        assert axis.low < axis.high
        assert all(0 <= axis.at(value) <= 1 for value in finite)
