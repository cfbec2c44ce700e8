"""What a job's model is with the measurements of another job of its kind."""

from __future__ import annotations

import dataclasses

import pytest

from pollux_slurm.goodput import Observation, agrees, fit_throughput, iteration_time_s, taught_model
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


def test_that_a_job_does_not_get_what_it_trains_from_another() -> None:
    """What another tells there may be invalid, which must not be this job's fault."""
    teacher = dataclasses.replace(TEACHER, num_parameters=7, precision="no name")
    assert taught_model(None, teacher) == TEACHER
    unmeasured = dataclasses.replace(OWN, throughput=None, precision="float32")
    found = taught_model(unmeasured, teacher)
    assert found is not None
    assert (found.throughput, found.num_parameters, found.precision) == (THETA, None, "float32")


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


@pytest.mark.parametrize(("overhead_s", "example_s"), [(0.002, 0.001), (0.05, 0.00005), (0.05, 0.001)])
@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_that_a_job_that_starts_on_several_gpus_agrees_with_an_equal_training(
    overhead_s: float, example_s: float, gpus: int
) -> None:
    """With a fixed batch it has a single micro-batch, which does not tell overhead and work apart."""
    theta = dataclasses.replace(THETA, alpha_g=overhead_s, beta_g=example_s)
    teacher = dataclasses.replace(
        TEACHER, limits=BatchLimits(initial_batch_size=128), throughput=theta, max_gpus_seen=16
    )
    atomic = 128 // gpus
    seen = Observation(
        num_nodes=1,
        num_gpus=gpus,
        atomic_batch_size=atomic,
        micro_batch_s=overhead_s + example_s * atomic,
        last_time_s=float(iteration_time_s(theta, 1, gpus, atomic)),
    )
    own = dataclasses.replace(
        teacher, throughput=fit_throughput([seen]).parameters, max_gpus_seen=gpus, max_nodes_seen=1
    )
    assert agrees(own, teacher)


def equal_at(atomic: int, limits: BatchLimits) -> tuple[GoodputModel, GoodputModel]:
    """Return a job seen on eight GPUs and a teacher, far apart but at `atomic` examples a GPU."""
    theirs = dataclasses.replace(THETA, alpha_g=0.001, beta_g=1.0)
    mine = dataclasses.replace(THETA, alpha_g=0.001 + 0.9 * atomic, beta_g=0.1)
    own = dataclasses.replace(OWN, limits=limits, throughput=mine, max_gpus_seen=8)
    return own, dataclasses.replace(TEACHER, throughput=theirs)


@pytest.mark.parametrize(
    ("atomic", "limits"),
    [
        (64, BatchLimits(initial_batch_size=64)),
        (8, BatchLimits(initial_batch_size=64)),
        # 256 do not fit on a GPU.
        (48, BatchLimits(initial_batch_size=256, max_batch_size=512, max_atomic=48)),
        # Less than four are not allowed.
        (4, BatchLimits(initial_batch_size=8, max_batch_size=512, min_atomic=4)),
    ],
)
def test_that_models_are_compared_at_initial_batches_that_fit(atomic: int, limits: BatchLimits) -> None:
    assert agrees(*equal_at(atomic, limits))
    assert not agrees(*equal_at(16 * atomic, limits))


def test_that_a_fixed_batch_is_what_larger_sizes_are_scaled_by() -> None:
    own, teacher = equal_at(8, BatchLimits(initial_batch_size=64))
    found = taught_model(own, teacher)
    assert found is not None
    assert found.throughput is not None
    assert found.throughput.beta_g == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(("factor", "teaches"), [(1.9, True), (2.1, False), (0.6, True), (0.4, False)])
def test_that_a_kind_of_another_network_does_not_replace_what_the_job_has_measured(
    factor: float, teaches: bool
) -> None:
    """On one GPU the steps are equal, on the largest size they are `factor` times as long."""
    size = (2, 8, 1024 // 8)
    whole, alone = (float(iteration_time_s(THETA, *one)) for one in (size, (1, 1, 1024 // 8)))
    theta = dataclasses.replace(THETA, gamma=1.0)
    more = factor * whole - alone
    own = dataclasses.replace(
        OWN,
        throughput=dataclasses.replace(theta, alpha_n=more, beta_n=1e-8),
        max_gpus_seen=8,
        max_nodes_seen=2,
    )
    taught = taught_model(own, TEACHER)
    assert (taught != own) is teaches


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
