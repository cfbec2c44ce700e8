"""The weights of `price-rank`: co-states by hand, against published ones, and within decisions."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.model import GoodputModel, Objective, ProblemJob
from pollux_slurm.policy.decide import build_candidates
from pollux_slurm.policy.objectives.price_rank import MAX_WEIGHT_RATIO, CoStates
from tests.policy.builders import job, linear_model, nodes, problem

GPUS = np.arange(1, 513)


def speedups(*rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.stack(rows)


@pytest.mark.parametrize("p", [0.3, 0.5, 0.8])
def test_that_power_laws_give_the_weights_of_hesrpt(p: float) -> None:
    # Berg, Vesilind, Harchol-Balter (2020): with i jobs left, the share of the i-th largest is
    # (i/m)^(1/(1-p)) − ((i−1)/m)^(1/(1-p)); at the optimum w_i·s'(share) is the same for all.
    remaining = np.array([100.0, 900.0, 300.0, 500.0])
    found = CoStates(remaining, speedups(*[GPUS**p] * 4), GPUS, 512.0).weight
    i = np.array([4.0, 1.0, 3.0, 2.0])
    power = 1 / (1 - p)
    np.testing.assert_allclose(found, 512.0**-p * (i**power - (i - 1) ** power) ** (1 - p), rtol=0.02)


def test_that_for_linear_jobs_a_weight_is_the_rank_by_remaining_time() -> None:
    found = CoStates(np.array([5.0, 1.0, 3.0]), speedups(*[GPUS * 1.0] * 3), GPUS, 512.0).weight
    np.testing.assert_allclose(found * 512.0, [1.0, 3.0, 2.0], rtol=0.02)


def test_that_equal_jobs_have_equal_weights_in_any_order() -> None:
    linear, bent = GPUS * 1.0, GPUS**0.5
    found = CoStates(
        np.array([7.0, 7.0, 2.0, 7.0]), speedups(linear, linear, bent, linear), GPUS, 512.0
    ).weight
    assert found[0] == found[1] == found[3]


@given(
    st.lists(st.floats(1.0, 1e6), min_size=1, max_size=8, unique=True),
    st.lists(st.floats(0.05, 0.95), min_size=8, max_size=8),
)
def test_that_the_maximum_falls_by_one_with_each_job_that_ends(
    remaining: list[float], powers: list[float]
) -> None:
    gpus, total = GPUS[:64], 64.0
    table = speedups(*[gpus**p for p in powers[: len(remaining)]])
    weight = CoStates(np.array(remaining), table, gpus, total).weight
    prices = np.geomspace(1e-4, 1.0, 400)
    value = prices * total
    for count, row in enumerate(np.argsort(remaining)[::-1].tolist(), start=1):
        gain = weight[row] * table[row] - prices[:, None] * gpus
        value = value + np.maximum(gain.max(axis=1), 0.0)
        assert value.min() == pytest.approx(count, rel=0.03)


def test_that_the_weight_for_another_remaining_time_is_near_the_exact_one() -> None:
    table = speedups(*[GPUS[:64] ** p for p in (0.9, 0.6, 0.8, 0.7)])
    for other in (10.0, 250.0, 600.0, 5000.0):
        weight = CoStates(np.array([400.0, 100.0, 300.0, 900.0]), table, GPUS[:64], 64.0).weight_if(0, other)
        exact = CoStates(np.array([other, 100.0, 300.0, 900.0]), table, GPUS[:64], 64.0).weight[0]
        # The weights of jobs that end between the two times stay as they are.
        assert weight == pytest.approx(exact, rel=0.4)


def test_that_a_job_that_can_use_no_gpus_has_a_finite_positive_weight() -> None:
    useless = CoStates(np.array([3.0, 2.0]), speedups(GPUS * 0.0, GPUS * 1.0), GPUS, 8.0)
    assert np.isfinite(useless.weight).all()
    assert (useless.weight > 0).all()


def test_that_sizes_beyond_a_jobs_own_bounds_move_no_weight() -> None:
    def weights(of_the_small_one: GoodputModel) -> list[float]:
        declared = {"progress": 1000.0, "epochs_declared": 10.0}
        small = job("small", model=of_the_small_one, max_gpus=1, epochs_done=2.0, **declared)
        large = job("large", model=linear_model(), epochs_done=1.0, **declared)
        asked = problem(nodes(4), small, large, job("new", model=None))
        asked = dataclasses.replace(asked, objective=Objective(name="price-rank"))
        return build_candidates(asked, list(asked.jobs)).scores.weight.tolist()

    # On one GPU the two are the same.
    assert weights(linear_model()) == weights(linear_model(sync_s=100.0, network_s=100.0))


def weights(*jobs: ProblemJob) -> npt.NDArray[np.float64]:
    asked = problem(nodes(4), *jobs, name="price-rank")
    return build_candidates(asked, list(asked.jobs)).scores.weight


def test_that_the_length_of_a_jobs_kind_counts_as_a_declaration_does() -> None:
    # Both have done a tenth: of 100,000 examples, or of ten epochs.
    begun: dict[str, Any] = {"progress": 10_000.0}
    unknown = job("c", **begun)
    declared = job("a", **begun, epochs_done=1.0, epochs_declared=10.0)
    by_kind = job("a", **begun, expected_progress=100_000.0)
    np.testing.assert_allclose(weights(declared, unknown), weights(by_kind, unknown), rtol=1e-12)
    assert weights(by_kind, unknown)[0] > weights(by_kind, unknown)[1]  # which may need 1,000 s


def test_that_jobs_of_unknown_length_that_have_done_about_as_much_weigh_the_same() -> None:
    # They have done 0, 900, 2,000 and 90,000 seconds.
    young, older, old, oldest = weights(
        *[job(str(work), progress=work * one_gpu_rate()) for work in (0.1, 900.0, 2_000.0, 90_000.0)]
    )
    assert young == older > old > oldest


def test_that_no_weight_is_far_from_the_median_on_either_side() -> None:
    an_hour = 3600.0 * one_gpu_rate()
    others = [job(str(row), progress=1.0, expected_progress=1.0 + an_hour) for row in range(30)]
    longest = weights(job("a", progress=1.0, expected_progress=1e4 * an_hour), *others)
    assert longest[0] == pytest.approx(np.median(longest) / MAX_WEIGHT_RATIO)
    # What ends next, and has at most one GPU.
    shortest = weights(job("a", progress=1.0, expected_progress=2.0, max_gpus=1), *others[:3])
    assert shortest[0] == pytest.approx(np.median(shortest) * MAX_WEIGHT_RATIO)


def one_gpu_rate() -> float:
    asked = problem(nodes(4), job("a", progress=1.0), name="price-rank")
    return float(build_candidates(asked, list(asked.jobs)).tables.one_gpu_goodput[0])
