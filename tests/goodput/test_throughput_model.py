"""Step times: hand-checked numbers and the limits of γ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.goodput import gradient_time_s, iteration_time_s, sync_time_s
from pollux_slurm.goodput.throughput_model import overlapped_s
from pollux_slurm.model import ThroughputParameters

THETA = ThroughputParameters(
    alpha_g=0.1, beta_g=0.01, alpha_n=0.5, beta_n=0.05, alpha_l=0.2, beta_l=0.02, gamma=1.0
)


def test_that_a_micro_batch_costs_a_fixed_time_and_one_for_each_example() -> None:
    assert gradient_time_s(THETA, [1, 10, 40]).tolist() == pytest.approx([0.11, 0.2, 0.5])


@pytest.mark.parametrize(
    ("num_nodes", "num_gpus", "expected_s"),
    [(1, 1, 0.0), (1, 2, 0.2), (1, 4, 0.24), (2, 2, 0.5), (2, 8, 0.8), (4, 16, 1.2)],
)
def test_that_synchronising_depends_on_replicas_and_on_whether_they_share_a_node(
    num_nodes: int, num_gpus: int, expected_s: float
) -> None:
    assert float(sync_time_s(THETA, num_nodes, num_gpus)) == pytest.approx(expected_s)


def test_that_only_the_last_micro_batch_synchronises() -> None:
    # γ = 1 adds: 3 × 0.2 s of accumulation, then 0.2 + 0.8 s.
    assert float(iteration_time_s(THETA, 2, 8, 10, 3)) == pytest.approx(1.6)


def test_that_gamma_two_is_the_hypotenuse() -> None:
    assert float(overlapped_s(3.0, 4.0, 2.0)) == pytest.approx(5.0)


def test_that_two_times_of_zero_take_no_time() -> None:
    assert float(overlapped_s(0.0, 0.0, 3.0)) == 0.0


def test_that_arrays_broadcast_against_each_other() -> None:
    times = iteration_time_s(THETA, 1, np.array([1, 2, 4])[:, None], np.array([10, 20])[None, :], 0)
    assert times == pytest.approx(np.array([[0.2, 0.3], [0.4, 0.5], [0.44, 0.54]]))


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 10))
def test_that_overlapping_lies_between_the_longer_and_the_sum(a: float, b: float, gamma: float) -> None:
    together = float(overlapped_s(a, b, gamma))
    assert max(a, b) * (1 - 1e-12) <= together <= (a + b) * (1 + 1e-12)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_that_a_larger_gamma_hides_more(a: float, b: float) -> None:
    assert float(overlapped_s(a, b, 4.0)) <= float(overlapped_s(a, b, 2.0)) * (1 + 1e-12)
