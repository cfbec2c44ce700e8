"""Statistical efficiency: hand-checked numbers, and what noise in the estimates does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.goodput import efficiency, gain, noise_scale
from pollux_slurm.model import GradientStatistics

# φ = 100·3/1 = 300 examples.
NOISY = GradientStatistics(sqr=1.0, var=3.0)


def test_that_the_noise_scale_is_in_examples() -> None:
    assert noise_scale(NOISY, 100) == 300.0


def test_that_efficiency_follows_the_paper() -> None:
    # (φ + M0)/(φ + M): 400/400, 400/500, 400/700, 400/1300.
    expected = [1.0, 0.8, 4 / 7, 4 / 13]
    assert efficiency(NOISY, 100, [100, 200, 400, 1000]).tolist() == pytest.approx(expected)


def test_that_gain_is_efficiency_times_scale() -> None:
    # (3 + 1)/(3/4 + 1) = 16/7 at four times the batch.
    assert float(gain(NOISY, 100, 400)) == pytest.approx(16 / 7)


@pytest.mark.parametrize(
    "statistics",
    [None, NOISY, GradientStatistics(sqr=0.0, var=0.0), GradientStatistics(sqr=-1.0, var=2.0)],
)
def test_that_one_batch_gains_what_it_does_among_several(statistics: GradientStatistics | None) -> None:
    sizes = [100, 200, 300, 1000]
    assert [float(gain(statistics, 100, size)) for size in sizes] == gain(statistics, 100, sizes).tolist()


def test_that_a_pure_signal_gains_nothing() -> None:
    assert float(gain(GradientStatistics(sqr=1.0, var=0.0), 100, 400)) == 1.0


def test_that_pure_noise_gains_the_whole_scale() -> None:
    statistics = GradientStatistics(sqr=0.0, var=2.0)
    assert float(gain(statistics, 100, 400)) == pytest.approx(4.0)
    assert noise_scale(statistics, 100) == math.inf


@pytest.mark.parametrize("sqr", [0.0, -1.0, -0.75])
def test_that_gain_is_one_where_noise_left_no_denominator(sqr: float) -> None:
    assert float(gain(GradientStatistics(sqr=sqr, var=max(-sqr, 0.0)), 100, 100)) == 1.0


@pytest.mark.parametrize("sqr", [-0.76, -3.0])
def test_that_gain_is_one_where_the_denominator_is_negative(sqr: float) -> None:
    assert float(gain(GradientStatistics(sqr=sqr, var=3.0), 100, 400)) == 1.0


def test_that_without_statistics_a_larger_batch_is_worth_no_more() -> None:
    assert efficiency(None, 100, [100, 200, 400]).tolist() == [1.0, 0.5, 0.25]


@given(st.floats(0, 1e30), st.floats(0, 1e30), st.integers(1, 10**6), st.floats(1, 1e3))
def test_that_efficiency_lies_between_one_over_scale_and_one(
    sqr: float, var: float, initial: int, scale: float
) -> None:
    found = float(efficiency(GradientStatistics(sqr=sqr, var=var), initial, initial * scale))
    assert (1 - 1e-9) / scale <= found <= 1 + 1e-9
