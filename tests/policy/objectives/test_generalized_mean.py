"""The generalized mean, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from pollux_slurm.policy.objectives.generalized_mean import contribution, mean, mean_of_sum


@pytest.mark.parametrize(
    ("exponent", "expected"),
    # Of 1 and 4: harmonic 1.6, geometric 2, arithmetic 2.5, quadratic sqrt(8.5).
    [(-1.0, 1.6), (0.0, 2.0), (1.0, 2.5), (2.0, 8.5**0.5)],
)
def test_that_the_exponent_chooses_the_mean(exponent: float, expected: float) -> None:
    assert mean(exponent, [1.0, 4.0]) == pytest.approx(expected)
    total = float(contribution(exponent, [1.0, 4.0]).sum())
    assert mean_of_sum(exponent, total, 2.0) == pytest.approx(expected)


def test_that_a_weight_of_three_counts_a_job_three_times() -> None:
    assert mean(-1.0, [1.0, 4.0], [1.0, 3.0]) == pytest.approx(mean(-1.0, [1.0, 4.0, 4.0, 4.0]))


def test_that_the_floor_keeps_a_job_with_nothing_finite() -> None:
    assert mean(-1.0, [1e-3, 1e-3]) == pytest.approx(1e-3)


def test_that_the_fitness_of_no_jobs_is_zero() -> None:
    assert mean(-1.0, []) == 0.0


@pytest.mark.parametrize("exponent", [-20.0, 20.0])
def test_that_a_large_exponent_does_not_overflow(exponent: float) -> None:
    found = mean(exponent, [1e-3, 1e3])
    assert 1e-3 <= found <= 1e3


@for_all(
    st.floats(-6, 2),
    st.lists(st.floats(0.01, 1e3), min_size=1, max_size=5),
    st.floats(1.01, 10),
)
def test_that_more_for_one_job_raises_its_contribution_and_the_mean(
    exponent: float, speedups: list[float], more: float
) -> None:
    better = [speedups[0] * more, *speedups[1:]]
    assert contribution(exponent, better)[0] > contribution(exponent, speedups)[0]
    assert mean(exponent, better) >= mean(exponent, speedups) * (1 - 1e-12)
