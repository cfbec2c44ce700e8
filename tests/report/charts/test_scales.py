"""Axes and their ticks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.report import duration_axis, duration_text, linear_axis, log_axis, value_axis


def test_that_linear_ticks_are_round_and_hold_all_values() -> None:
    axis = linear_axis("x", [3.0, 61.0])
    assert axis.ticks == ((0, "0"), (20, "20"), (40, "40"), (60, "60"), (80, "80"))
    assert (axis.at(0), axis.at(40), axis.at(80)) == (0, 0.5, 1)
    assert linear_axis("x", [0.0, 1.0], percent=True).ticks[-1] == (1.0, "100")


def test_that_an_axis_need_not_begin_at_zero() -> None:
    assert linear_axis("x", [110.0, 120.0], zero=False).low == 110
    assert next(text for _, text in linear_axis("x", [-2.0, 1.0]).ticks) == "\N{MINUS SIGN}2"


def test_that_durations_have_round_ticks() -> None:
    axis = duration_axis("time", [70.0, 7000.0])
    assert [text for _, text in axis.ticks] == ["1 min", "2 min", "5 min", "10 min", "30 min", "1 h", "2 h"]
    assert axis.at(60) == 0
    assert axis.at(7200) == 1
    assert 0 < axis.at(600) < axis.at(3600) < 1


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (45, "45 s"), (60, "1 min"), (5400, "1.5 h"), (864000, "10 d")]
)
def test_that_durations_are_short(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_that_ratios_are_as_far_from_one_both_ways() -> None:
    axis = log_axis("ρ", [0.6, 1.7], around=1.0)
    assert axis.at(1) - axis.at(0.5) == pytest.approx(axis.at(2) - axis.at(1))
    assert [text for _, text in axis.ticks] == ["0.5", "1", "2"]
    assert 0 < log_axis("ρ", [1.0], around=1.0).at(1) < 1


def test_that_few_values_are_ticks_themselves() -> None:
    axis = value_axis("delay", [0, 121, 30])
    assert [text for _, text in axis.ticks] == ["0", "30", "121"]
    assert 0 < axis.at(0) < axis.at(121) < 1


@given(values=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=5))
def test_that_any_values_make_an_axis(values: list[float]) -> None:
    finite = [value for value in values if abs(value) < 1e30]
    for axis in (linear_axis("x", finite), log_axis("x", finite), duration_axis("x", finite)):
        assert axis.low < axis.high
        assert len(axis.ticks) >= 1
        assert all(0 <= axis.at(value) <= 1 for value in finite)
