"""Damped Newton steps within bounds: by hand, and on a function that is known to be hard."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollux_slurm.goodput.fit_descent import bounded_step, descend, solve


@dataclass
class At:
    x: list[float]
    value: float


class Valley:
    """Rosenbrock's curved valley, (1 − x)² + 100·(y − x²)², as the two squares that it is."""

    def __init__(self, low: list[float], high: list[float]) -> None:
        self.low, self.high = low, high

    def at(self, x: list[float]) -> At:
        return At(x=x, value=(1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2)

    def derivatives(self, point: At) -> tuple[list[float], list[list[float]], list[float]]:
        x, y = point.x
        errors = np.array([1 - x, 10 * (y - x * x)])
        by_x = np.array([[-1.0, 0.0], [-20 * x, 10.0]])
        hessian = 2 * by_x.T @ by_x
        return (2 * errors @ by_x).tolist(), hessian.tolist(), hessian.diagonal().tolist()


def test_that_a_curved_valley_is_followed_to_its_end() -> None:
    found = descend(Valley([-2.0, -2.0], [2.0, 2.0]), [-1.2, 1.0])
    assert found.x == pytest.approx([1.0, 1.0], abs=1e-2)


def test_that_a_bound_in_the_way_is_followed() -> None:
    found = descend(Valley([-2.0, -2.0], [0.5, 2.0]), [-1.2, 1.0])
    assert found.x == pytest.approx([0.5, 0.25], abs=1e-3)


def test_that_a_minimum_stays_where_it_is() -> None:
    assert descend(Valley([-2.0, -2.0], [2.0, 2.0]), [1.0, 1.0]).x == [1.0, 1.0]


def test_that_the_first_to_reach_its_bound_stays_there() -> None:
    # x² + y² + x·y − 4·x − 4·y has its minimum at (4/3, 4/3); with x ≤ 1 it is y = (4 − 1)/2.
    step, predicted = bounded_step(
        [-4.0, -4.0], [[2.0, 1.0], [1.0, 2.0]], [2.0, 2.0], 0.0, [-9.0, -9.0], [1.0, 9.0]
    )
    assert step == pytest.approx([1.0, 1.5])
    assert predicted == pytest.approx(-(1 + 2.25 + 1.5 - 4 - 6))


def test_that_nothing_moves_out_of_its_bounds() -> None:
    step, predicted = bounded_step(
        [1.0, -1.0], [[2.0, 0.0], [0.0, 2.0]], [2.0, 2.0], 0.0, [0.0, -9.0], [9.0, 0.0]
    )
    assert step == [0.0, 0.0]
    assert predicted == 0.0


def test_that_what_nothing_depends_on_does_not_move() -> None:
    step, _ = bounded_step([1.0, 0.0], [[2.0, 0.0], [0.0, 0.0]], [2.0, 0.0], 0.0, [-9.0, -9.0], [9.0, 9.0])
    assert step == pytest.approx([-0.5, 0.0], abs=1e-12)


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(0, 10**6), st.floats(1e-6, 10.0))
def test_that_a_system_is_solved(size: int, seed: int, damping: float) -> None:
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(size, size))
    matrix, wanted = half @ half.T, rng.normal(size=size)
    lower = [row[: index + 1] for index, row in enumerate(matrix.tolist())]
    found = np.array(solve(lower, damping, wanted.tolist()))
    assert matrix @ found + damping * found == pytest.approx(wanted, abs=1e-6)


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(0, 10**6))
def test_that_a_step_stays_within_its_bounds(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(size, size))
    matrix = half @ half.T
    low, high = -rng.exponential(size=size), rng.exponential(size=size)
    gradient = rng.normal(size=size)
    step, predicted = bounded_step(
        gradient.tolist(), matrix.tolist(), matrix.diagonal().tolist(), 0.1, low.tolist(), high.tolist()
    )
    assert (np.array(step) >= low).all()
    assert (np.array(step) <= high).all()
    assert predicted == pytest.approx(-gradient @ step - step @ matrix @ np.array(step) / 2)
