"""The generalized mean and the restart penalty, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from pollux_slurm.model import Objective
from pollux_slurm.policy.objectives.generalized_mean import contribution, mean, mean_of_sum
from pollux_slurm.policy.objectives.restart_penalty import restart_penalty
from tests.policy.builders import job


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


@pytest.mark.parametrize(
    ("age_s", "num_restarts", "delay_s", "expected"),
    [
        (0.0, 0, 30.0, 0.0),
        (60.0, 0, 30.0, 2 / 3),
        (60.0, 2, 30.0, 0.0),
        (60.0, 9, 30.0, 0.0),
        (0.0, 5, 0.0, 1.0),
    ],
)
def test_that_the_penalty_is_the_part_of_its_life_a_job_did_not_spend_restarting(
    age_s: float, num_restarts: int, delay_s: float, expected: float
) -> None:
    moved = job("a", {"n0": 1}, age_s=age_s, num_restarts=num_restarts, restart_delay_s=delay_s)
    assert restart_penalty(moved, Objective()) == pytest.approx(expected)


def test_that_a_job_without_gpus_has_no_restart_penalty() -> None:
    assert restart_penalty(job("a", age_s=0.0, num_restarts=9), Objective()) == 1.0
