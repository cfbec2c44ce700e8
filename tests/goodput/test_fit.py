"""Fitting θ to exact, noisy, few and odd measurements."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollux_slurm.goodput import Observation, check_model, fit_throughput, gradient_time_s, iteration_time_s
from pollux_slurm.goodput.fit_descent import descend
from pollux_slurm.goodput.fit_loss import NETWORK_OVER_NODE, SMALLEST_S, StepTimeLoss
from pollux_slurm.model import BatchLimits, GoodputModel, ThroughputParameters
from tests.goodput.outliers import at_percentile, prediction_errors
from tests.goodput.traces import APPLICATIONS, by_placement

TRUTH = ThroughputParameters(
    alpha_g=0.08, beta_g=0.002, alpha_n=0.15, beta_n=0.004, alpha_l=0.05, beta_l=0.001, gamma=2.0
)


def observe(
    num_nodes: int, num_gpus: int, atomic: int, *, theta: ThroughputParameters = TRUTH
) -> Observation:
    return Observation(
        num_nodes=num_nodes,
        num_gpus=num_gpus,
        atomic_batch_size=atomic,
        micro_batch_s=float(gradient_time_s(theta, atomic)),
        last_time_s=float(iteration_time_s(theta, num_nodes, num_gpus, atomic)),
    )


PLACES = [(1, 1), (1, 2), (1, 4), (2, 2), (2, 8), (4, 16)]
EVERYTHING = [observe(n, k, m) for n, k in PLACES for m in (16, 32, 64, 128)]


def test_that_exact_measurements_are_predicted_to_a_percent() -> None:
    found = fit_throughput(EVERYTHING)
    assert found.reason is None
    assert found.num_used == len(EVERYTHING)
    assert found.error is not None
    assert found.error < 0.01
    assert found.parameters is not None
    for n, k in [*PLACES, (1, 3), (3, 12)]:
        predicted = float(iteration_time_s(found.parameters, n, k, 48))
        assert predicted == pytest.approx(float(iteration_time_s(TRUTH, n, k, 48)), rel=0.01)


@given(st.floats(1e-3, 1e3))
@settings(max_examples=10, deadline=None)
def test_that_the_unit_of_time_does_not_matter(unit: float) -> None:
    scaled = [
        dataclasses.replace(
            seen, micro_batch_s=unit * seen.micro_batch_s, last_time_s=unit * seen.last_time_s
        )
        for seen in EVERYTHING
    ]
    found = fit_throughput(scaled)
    assert found.parameters is not None
    predicted = float(iteration_time_s(found.parameters, 2, 6, 48)) / unit
    assert predicted == pytest.approx(float(iteration_time_s(TRUTH, 2, 6, 48)), rel=0.01)


def test_that_the_heavier_of_two_contradicting_measurements_wins() -> None:
    light, heavy = (
        observe(1, 1, 32),
        dataclasses.replace(observe(1, 1, 32), micro_batch_s=0.4, last_time_s=0.4),
    )
    found = fit_throughput([light, dataclasses.replace(heavy, weight=99.0)])
    assert found.parameters is not None
    assert float(gradient_time_s(found.parameters, 32)) == pytest.approx(0.4, rel=0.05)


# ------------------------------------------------------------------------------ optimism before evidence


def test_that_with_one_batch_size_the_time_is_split_evenly() -> None:
    found = fit_throughput([observe(1, 1, 32)])
    assert found.parameters is not None
    assert found.parameters.alpha_g == pytest.approx(float(gradient_time_s(TRUTH, 32)) / 2, rel=1e-3)
    assert found.parameters.beta_g * 32 == pytest.approx(found.parameters.alpha_g, rel=1e-6)


def test_that_one_replica_makes_more_of_them_look_free() -> None:
    found = fit_throughput([observe(1, 1, 32), observe(1, 1, 64)])
    assert found.parameters is not None
    alone = float(iteration_time_s(found.parameters, 1, 1, 32))
    assert float(iteration_time_s(found.parameters, 4, 16, 32)) == pytest.approx(alone, rel=1e-4)


def test_that_two_replicas_do_not_determine_the_cost_of_a_third() -> None:
    found = fit_throughput([observe(1, 1, 32), observe(1, 2, 32), observe(1, 2, 64)])
    assert found.parameters is not None
    assert found.parameters.beta_l == SMALLEST_S
    assert found.parameters.alpha_n == pytest.approx(NETWORK_OVER_NODE * found.parameters.alpha_l)


def test_that_the_network_scales_like_the_node_until_it_is_measured() -> None:
    found = fit_throughput([observe(1, k, m) for k in (1, 2, 3, 4) for m in (16, 64)])
    assert found.parameters is not None
    assert found.parameters.beta_l > 10 * SMALLEST_S
    assert found.parameters.beta_n == found.parameters.beta_l


def test_that_the_network_is_never_fitted_faster_than_the_node() -> None:
    fast_network = dataclasses.replace(TRUTH, alpha_n=0.01, beta_n=0.0)
    places = [(1, 1), (1, 2), (1, 4), (2, 2), (2, 4)]
    found = fit_throughput([observe(n, k, m, theta=fast_network) for n, k in places for m in (16, 64)])
    assert found.parameters is not None
    assert found.parameters.alpha_n >= NETWORK_OVER_NODE * found.parameters.alpha_l


# ----------------------------------------------------------------------------------------------- odd data


def test_that_nothing_measured_leaves_the_previous_parameters() -> None:
    found = fit_throughput([], previous=TRUTH)
    assert found.parameters is TRUTH
    assert found.reason == "no observations"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_nodes", 0),
        ("num_nodes", 3),
        ("num_gpus", -1),
        ("num_gpus", 10**9),
        ("atomic_batch_size", 0),
        ("atomic_batch_size", 1.5),
        ("micro_batch_s", math.nan),
        ("micro_batch_s", 0.0),
        ("micro_batch_s", -1.0),
        ("last_time_s", math.inf),
        ("last_time_s", 1e300),
        ("last_time_s", None),
        ("weight", 0.0),
        ("weight", math.nan),
    ],
)
def test_that_an_impossible_measurement_is_left_out(field: str, value: Any) -> None:
    odd = dataclasses.replace(observe(1, 2, 32), **{field: value})
    alone = fit_throughput([odd], previous=TRUTH)
    assert alone.parameters is TRUTH
    assert alone.reason == "none of 1 observations is usable"
    assert fit_throughput([odd, *EVERYTHING]) == fit_throughput(EVERYTHING)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(
            Observation,
            num_nodes=st.integers(-1, 3),
            num_gpus=st.integers(-1, 10),
            atomic_batch_size=st.integers(0, 10**9),
            micro_batch_s=st.floats(),
            last_time_s=st.floats(),
            weight=st.floats(),
        )
        | st.builds(
            Observation,
            num_nodes=st.integers(1, 2),
            num_gpus=st.integers(2, 10),
            atomic_batch_size=st.integers(1, 10**6),
            micro_batch_s=st.floats(1e-9, 1e6),
            last_time_s=st.floats(1e-9, 1e6),
            weight=st.floats(1e-12, 1e12),
        ),
        max_size=6,
    )
)
def test_that_whatever_was_measured_the_parameters_are_ones_that_a_job_can_have(
    observations: list[Observation],
) -> None:
    found = fit_throughput(observations, previous=TRUTH)
    assert (found.reason is None) == (found.error is not None)
    check_model(GoodputModel(limits=BatchLimits(initial_batch_size=1), throughput=found.parameters))


def test_that_fitting_again_from_its_own_answer_changes_nothing_that_matters() -> None:
    noisy = [
        dataclasses.replace(seen, last_time_s=seen.last_time_s * (1.1 if index % 2 else 0.9))
        for index, seen in enumerate(EVERYTHING)
    ]
    first = fit_throughput(noisy)
    second = fit_throughput(noisy, previous=first.parameters)
    assert first.error is not None
    assert second.error == pytest.approx(first.error, rel=1e-3)


# ---------------------------------------------------------------------------------------------- outliers

STEPS = {
    "one step a situation": lambda rng: 1,
    "a few steps": lambda rng: rng.choice((1, 1, 2, 3, 5, 8)),
    "mostly many": lambda rng: 1 if rng.random() < 0.2 else 64,
}


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("num_steps", STEPS.values(), ids=STEPS)
def test_that_steps_ten_times_too_long_leave_predictions_within_a_few_percent(
    num_steps: Callable[[random.Random], int], share: float
) -> None:
    rng = random.Random(5)
    errors = [error for _ in range(30) for error in prediction_errors(rng, num_steps=num_steps, share=share)]
    # With least squares alone, these errors are up to 92 and 180 %.
    assert at_percentile(errors, 90) <= 0.05
    assert at_percentile(errors, 99) <= 0.12


def test_that_a_size_that_is_truly_slow_is_predicted_as_slow_as_it_was_measured() -> None:
    seen = [observe(1, k, m) for k, m in ((1, 16), (1, 32), (1, 64), (2, 16), (2, 32), (4, 16))]
    # Four processes on two cores: a micro-batch takes twice as long, too, as no other size's does.
    slow = dataclasses.replace(
        seen[-1], micro_batch_s=2.0 * seen[-1].micro_batch_s, last_time_s=2.0 * seen[-1].last_time_s
    )
    found = fit_throughput([*seen[:-1], slow]).parameters
    assert found is not None
    assert float(iteration_time_s(found, 1, 4, 16)) == pytest.approx(slow.last_time_s, rel=0.02)
    assert float(iteration_time_s(found, 1, 1, 32)) == pytest.approx(seen[1].last_time_s, rel=0.02)


def test_that_without_outliers_the_fit_is_least_squares() -> None:
    rng = random.Random(1)
    noisy = [
        dataclasses.replace(seen, last_time_s=seen.last_time_s * rng.uniform(0.8, 1.25))
        for seen in EVERYTHING
    ]
    loss = StepTimeLoss(noisy)
    least_squares = descend(loss, loss.guesses()[loss.values(loss.guesses()).argmin()].tolist())
    assert not loss.has_outliers(least_squares)
    assert fit_throughput(noisy).parameters == loss.parameters(least_squares.x)


@pytest.mark.parametrize(
    ("slow", "confirmed", "believed"), [(10, False, 1), (10, True, 10), (1.5, False, 1.5)]
)
def test_that_a_contradicting_measurement_counts_once_it_is_confirmed(
    slow: float, confirmed: bool, believed: float
) -> None:
    on_a_node = [observe(1, k, m) for k in (1, 2, 4) for m in (16, 32, 64)]
    before = fit_throughput(on_a_node).parameters
    assert before is not None
    expected_s = float(iteration_time_s(before, 2, 2, 32))
    first = dataclasses.replace(observe(2, 2, 32), last_time_s=slow * expected_s, confirmed=confirmed)
    found = fit_throughput([*on_a_node, first], previous=before).parameters
    assert found is not None
    assert float(iteration_time_s(found, 2, 2, 32)) == pytest.approx(believed * expected_s, rel=0.03)


def test_that_two_sizes_far_slower_than_predicted_do_count() -> None:
    alone = [observe(1, 1, m) for m in (16, 32, 64)]
    before = fit_throughput(alone).parameters
    assert before is not None
    slow = [
        dataclasses.replace(
            observe(1, k, m), last_time_s=5.0 * float(gradient_time_s(before, m)), confirmed=False
        )
        for k, m in ((2, 32), (2, 64), (4, 32))
    ]

    def expected(seen: list[Observation]) -> float:
        found = fit_throughput([*alone, *seen], previous=before).parameters
        assert found is not None
        return float(iteration_time_s(found, 1, 4, 32) / gradient_time_s(before, 32))

    assert expected(slow[:2]) == pytest.approx(1.0, rel=0.05), "one size, whatever the batch"
    assert expected(slow) == pytest.approx(5.0, rel=0.3)


def test_that_the_only_measurement_counts_however_short_it_was() -> None:
    seen = dataclasses.replace(observe(1, 1, 32), confirmed=False)
    other = dataclasses.replace(TRUTH, alpha_g=TRUTH.alpha_g / 10, beta_g=TRUTH.beta_g / 10)
    found = fit_throughput([seen], previous=other).parameters
    assert found is not None
    assert float(iteration_time_s(found, 1, 1, 32)) == pytest.approx(seen.last_time_s, rel=0.01)


# ------------------------------------------------------------------------------------- published traces


@pytest.mark.parametrize("application", APPLICATIONS)
def test_that_half_of_the_published_placements_predict_the_other_half(application: str) -> None:
    placements = by_placement(application)
    half = set(random.Random(0).sample(sorted(placements), len(placements) // 2))
    found = fit_throughput([seen for name in sorted(half) for seen in placements[name]])
    theta = found.parameters
    assert theta is not None
    errors = [
        abs(
            float(iteration_time_s(theta, seen.num_nodes, seen.num_gpus, seen.atomic_batch_size))
            / seen.last_time_s
            - 1
        )
        for name, rows in placements.items()
        if name not in half
        for seen in rows
    ]
    assert sum(errors) / len(errors) <= 0.10


@pytest.mark.parametrize("previous", [None, TRUTH])
def test_that_an_expired_first_minute_leaves_its_size_as_good_as_unmeasured(
    previous: ThroughputParameters | None,
) -> None:
    """A job was ten times slower for its first minute on four GPUs, left them, and knows one and two well."""
    known = [observe(1, k, m) for k in (1, 2) for m in (16, 32, 64)]
    slow = dataclasses.replace(
        observe(1, 4, 32), micro_batch_s=1.0, last_time_s=14.0, confirmed=False, expired=True
    )
    truth = float(iteration_time_s(TRUTH, 1, 4, 32))
    found = fit_throughput([*known, slow], previous=previous).parameters
    assert found is not None
    assert float(iteration_time_s(found, 1, 4, 32)) < 1.2 * truth
    believed = fit_throughput([*known, dataclasses.replace(slow, expired=False)]).parameters
    assert believed is not None
    assert float(iteration_time_s(believed, 1, 4, 32)) > 1.5 * truth


def test_that_expired_measurements_that_agree_with_the_others_still_count() -> None:
    """On two nodes steps are longer than a job expects that knows one, but not by as much as disturbances."""
    expired = [dataclasses.replace(observe(2, 8, m), expired=True) for m in (16, 64)]
    known = [observe(1, k, m) for k in (1, 2, 4) for m in (16, 32, 64)]
    assert fit_throughput([*known, *expired]).num_used == len(known) + len(expired)
    assert fit_throughput(expired).num_used == len(expired)


@pytest.mark.parametrize(
    ("times", "confirmed", "counts"),
    [(1.3, False, True), (1.7, False, False), (1.7, True, True), (2.3, True, False)],
)
def test_that_an_expired_measurement_counts_unless_disturbances_may_be_why_it_is_slow(
    times: float, confirmed: bool, counts: bool
) -> None:
    known = [observe(1, k, m) for k in (1, 2, 4) for m in (16, 32, 64)]
    seen = observe(1, 8, 32)
    slow = dataclasses.replace(seen, last_time_s=times * seen.last_time_s, confirmed=confirmed, expired=True)
    assert fit_throughput([*known, slow]).num_used == len(known) + counts
    assert fit_throughput([*known, dataclasses.replace(slow, expired=False)]).num_used == len(known) + 1
