"""Rounding that hides the last bits, and sums in one order."""

from __future__ import annotations

import numpy as np
import pytest

from pollux_slurm.policy.problem.deterministic_rounding import (
    grid_step,
    ordered_inner,
    round_to_bits,
    round_to_grid,
)


def test_that_rounding_drops_the_last_bits_and_keeps_a_part_in_a_trillion() -> None:
    assert round_to_bits(1 / 3) == round_to_bits(np.nextafter(1 / 3, 1.0))
    assert round_to_bits(1 / 3) == pytest.approx(1 / 3, rel=1e-12)
    assert round_to_bits(1.0) != round_to_bits(1.0 + 1e-11)


@pytest.mark.parametrize("number", [0.0, -1.0, 3.0, 2.0**-1000, -np.inf, np.inf, 1.7e308])
def test_that_short_numbers_and_infinities_stay_as_they_are(number: float) -> None:
    assert round_to_bits(number) == number


def test_that_numbers_are_rounded_to_multiples_of_a_power_of_two() -> None:
    assert round_to_grid(np.array([0.3, -0.3, 1e-9]), grid_step(1.0, 3)).tolist() == [0.25, -0.25, 0.0]
    assert round_to_grid(np.array([0.3, 300.0]), grid_step(np.array([1.0, 1000.0]), 3)).tolist() == [
        0.25,
        256.0,
    ]


def test_that_the_ordered_inner_product_is_the_sum_of_products() -> None:
    assert ordered_inner(np.array([[1.0, 2.0], [3.0, 0.5]]), np.array([4.0, 2.0])).tolist() == [8.0, 13.0]
