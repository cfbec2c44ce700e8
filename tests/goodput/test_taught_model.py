"""What a job's model is with the measurements of another job of its kind."""

from __future__ import annotations

import dataclasses

import pytest

from pollux_slurm.goodput import agrees, iteration_time_s, taught_model
from pollux_slurm.model import BatchLimits, GoodputModel, GradientStatistics, ThroughputParameters

THETA = ThroughputParameters(
    alpha_g=0.05, beta_g=0.001, alpha_n=0.3, beta_n=0.02, alpha_l=0.03, beta_l=0.004, gamma=1.5
)
TEACHER = GoodputModel(
    limits=BatchLimits(initial_batch_size=64, max_batch_size=1024, max_atomic=256),
    statistics=GradientStatistics(sqr=1.0, var=20.0),
    throughput=THETA,
    max_gpus_seen=16,
    max_nodes_seen=4,
)
OWN = dataclasses.replace(
    TEACHER, statistics=GradientStatistics(sqr=1.0, var=7.0), max_gpus_seen=2, max_nodes_seen=1
)


def slower(factor: float) -> GoodputModel:
    """Return `OWN` measured as slower by a factor, without anything known of several nodes."""
    times = {
        name: factor * value for name, value in dataclasses.asdict(THETA).items() if not name.startswith("g")
    }
    theta = ThroughputParameters(**{**times, "alpha_n": 1e-8, "beta_n": 1e-8}, gamma=THETA.gamma)
    return dataclasses.replace(OWN, throughput=theta)


def test_that_a_job_without_measurements_has_its_kinds_model_with_its_own_limits_and_noise() -> None:
    limits = BatchLimits(initial_batch_size=32)
    own = dataclasses.replace(OWN, throughput=None, limits=limits, max_gpus_seen=0, max_nodes_seen=0)
    assert taught_model(None, TEACHER) == TEACHER
    assert taught_model(own, TEACHER) == dataclasses.replace(
        TEACHER, limits=limits, statistics=own.statistics
    )


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.25])
def test_that_larger_sizes_are_the_kinds_scaled_to_what_the_job_measured(factor: float) -> None:
    found = taught_model(slower(factor), TEACHER)
    assert found is not None
    assert found.throughput is not None
    assert (found.max_gpus_seen, found.max_nodes_seen) == (16, 4)
    assert found.statistics == OWN.statistics
    for nodes, gpus in ((1, 2), (4, 16)):
        expected = factor * float(iteration_time_s(THETA, nodes, gpus, 16))
        assert float(iteration_time_s(found.throughput, nodes, gpus, 16)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("factor", "counts"), [(0.7, False), (0.8, True), (1.0, True), (1.25, True), (1.4, False)]
)
def test_that_a_job_that_is_off_by_more_than_30_percent_does_not_agree(factor: float, counts: bool) -> None:
    assert agrees(slower(factor), TEACHER) is counts


def test_that_a_kind_counts_whatever_a_first_fit_says_of_the_network() -> None:
    theta = dataclasses.replace(THETA, alpha_n=2 * THETA.alpha_n)
    own = dataclasses.replace(OWN, throughput=theta, max_gpus_seen=8, max_nodes_seen=2)
    assert agrees(own, TEACHER)


def test_that_larger_sizes_equal_what_the_job_measured_with_its_largest_batch_there() -> None:
    theta = dataclasses.replace(THETA, alpha_n=2 * THETA.alpha_n)
    own = dataclasses.replace(OWN, throughput=theta, max_gpus_seen=8, max_nodes_seen=2)
    found = taught_model(own, TEACHER)
    assert found is not None
    assert found.throughput is not None
    measured, before = (float(iteration_time_s(one, 2, 8, 1024 // 8)) for one in (theta, THETA))
    assert float(iteration_time_s(found.throughput, 2, 8, 1024 // 8)) == pytest.approx(measured)
    assert float(iteration_time_s(found.throughput, 4, 16, 16)) == pytest.approx(
        measured / before * float(iteration_time_s(THETA, 4, 16, 16))
    )


def test_that_nothing_measured_contradicts_nothing() -> None:
    assert agrees(None, TEACHER)
    assert agrees(dataclasses.replace(slower(9.0), throughput=None), TEACHER)
    assert agrees(slower(9.0), dataclasses.replace(TEACHER, throughput=None))


def test_that_own_measurements_override_the_kinds() -> None:
    all_measured = dataclasses.replace(slower(3.0), max_gpus_seen=16, max_nodes_seen=4)
    assert taught_model(all_measured, TEACHER) is all_measured
    assert taught_model(OWN, dataclasses.replace(TEACHER, throughput=None)) is OWN
