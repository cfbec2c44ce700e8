"""The best batch of one job in one configuration: by hand, and against trying every whole number."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollux_slurm.goodput import best_batch, evaluate
from pollux_slurm.goodput.batch_search import MAX_MICRO_BATCHES
from pollux_slurm.model import (
    BatchChoice,
    BatchLimits,
    Configuration,
    GoodputModel,
    GradientStatistics,
    ThroughputParameters,
)

THETA = ThroughputParameters(
    alpha_g=0.1, beta_g=0.01, alpha_n=0.5, beta_n=0.05, alpha_l=0.2, beta_l=0.02, gamma=1.0
)


def on(num_nodes: int, num_gpus: int) -> Configuration:
    return Configuration(num_nodes=num_nodes, num_gpus=num_gpus)


def fixed(initial: int, **limits: int | bool) -> GoodputModel:
    return GoodputModel(limits=BatchLimits(initial_batch_size=initial, **limits), throughput=THETA)


def adaptive(initial: int, largest: int, **limits: int | bool) -> GoodputModel:
    return GoodputModel(
        limits=BatchLimits(initial_batch_size=initial, max_batch_size=largest, **limits),
        statistics=GradientStatistics(sqr=1.0, var=4.0),
        throughput=THETA,
    )


# ------------------------------------------------------------------------------------------- fixed batches


def test_that_a_fixed_batch_is_split_evenly_where_it_divides() -> None:
    found = best_batch(fixed(40), on(1, 4))
    assert found is not None
    assert found.batch == BatchChoice(global_batch_size=40, atomic_batch_size=10, accumulation_steps=0)
    # T = 0.1 + 0.01·10 + 0.2 + 0.02·2 = 0.44 s.
    assert found.step_time_s == pytest.approx(0.44)
    assert found.throughput == pytest.approx(40 / 0.44)
    assert found.efficiency == 1.0
    assert found.goodput == found.throughput


def test_that_an_uneven_split_keeps_the_batch_and_waits_for_the_largest_part() -> None:
    found = best_batch(fixed(40), on(1, 3))
    assert found is not None
    assert found.batch == BatchChoice(global_batch_size=40, atomic_batch_size=14, accumulation_steps=0)
    assert found.step_time_s == pytest.approx(0.1 + 0.14 + 0.2 + 0.02)


def test_that_a_fixed_batch_never_has_more_replicas_than_examples() -> None:
    assert best_batch(fixed(3), on(1, 3)) is not None
    assert best_batch(fixed(3), on(1, 4)) is None


def test_that_a_small_atomic_batch_is_met_by_the_fewest_micro_batches() -> None:
    found = best_batch(fixed(100, max_atomic=16, accumulation=True), on(1, 2))
    assert found is not None
    # 100/2 = 50 for each replica: four micro-batches of 13.
    assert found.batch == BatchChoice(global_batch_size=100, atomic_batch_size=13, accumulation_steps=3)


def test_that_without_accumulation_a_small_atomic_batch_needs_more_replicas() -> None:
    model = fixed(100, max_atomic=16)
    assert best_batch(model, on(1, 6)) is None
    found = best_batch(model, on(1, 7))
    assert found is not None
    assert found.batch.atomic_batch_size == 15


def test_that_no_micro_batch_of_a_fixed_batch_is_empty() -> None:
    # Five examples on three replicas in two micro-batches would leave one micro-batch of one replica empty.
    assert best_batch(fixed(5, max_atomic=1, accumulation=True), on(1, 3)) is None


def test_that_a_fixed_batch_respects_the_smallest_atomic_batch() -> None:
    assert best_batch(fixed(32, min_atomic=8), on(1, 4)) is not None
    assert best_batch(fixed(32, min_atomic=8), on(1, 5)) is None


# ---------------------------------------------------------------------------------------- adaptive batches


def test_that_one_replica_without_accumulation_keeps_its_batch() -> None:
    found = best_batch(adaptive(16, 1024), on(1, 1))
    assert found is not None
    assert found.batch == BatchChoice(global_batch_size=16, atomic_batch_size=16, accumulation_steps=0)


def test_that_one_replica_needs_two_micro_batches_for_a_larger_batch() -> None:
    found = best_batch(adaptive(16, 1024, max_atomic=16, accumulation=True), on(1, 1))
    assert found is not None
    assert found.batch.global_batch_size == 16 or found.batch.accumulation_steps >= 1


def test_that_a_range_no_multiple_of_the_replicas_lies_in_is_split_unevenly() -> None:
    found = best_batch(adaptive(64, 65), on(1, 3))
    assert found is not None
    assert found.batch == BatchChoice(global_batch_size=64, atomic_batch_size=22, accumulation_steps=0)


def test_that_a_job_without_measurements_has_no_best_batch() -> None:
    model = GoodputModel(limits=BatchLimits(initial_batch_size=8))
    assert best_batch(model, on(1, 1)) is None
    assert (
        evaluate(model, on(1, 1), BatchChoice(global_batch_size=8, atomic_batch_size=8, accumulation_steps=0))
        is None
    )


@pytest.mark.parametrize("configuration", [on(0, 0), on(0, 1), on(2, 1), on(1, 0)])
def test_that_an_impossible_configuration_has_no_batch(configuration: Configuration) -> None:
    assert best_batch(fixed(8), configuration) is None


def test_that_hostile_limits_cost_bounded_work() -> None:
    model = adaptive(1, 10**9, max_atomic=1, accumulation=True)
    found = best_batch(model, on(1, 1))
    assert found is not None
    assert found.batch.accumulation_steps < MAX_MICRO_BATCHES


def all_choices(limits: BatchLimits, num_gpus: int) -> list[BatchChoice]:
    """Every allowed whole-number choice."""
    initial, largest = limits.initial_batch_size, limits.max_batch_size
    biggest_atomic = limits.max_atomic or (largest or initial)
    found = []
    if largest is not None:
        most = max(math.ceil(largest / (num_gpus * min(biggest_atomic, largest))), 2 if num_gpus == 1 else 1)
        for micro_batches in range(1, most + 1 if limits.accumulation else 2):
            for atomic in range(limits.min_atomic, biggest_atomic + 1):
                batch = num_gpus * micro_batches * atomic
                alone = num_gpus == 1 and micro_batches == 1
                if initial <= batch <= (initial if alone else largest):
                    found.append((batch, atomic, micro_batches))
    for micro_batches in range(1, initial + 1 if limits.accumulation else 2):
        atomic = math.ceil(initial / (num_gpus * micro_batches))
        if atomic <= biggest_atomic:
            if num_gpus * micro_batches <= initial and atomic >= limits.min_atomic:
                found.append((initial, atomic, micro_batches))
            break
    return [
        BatchChoice(global_batch_size=batch, atomic_batch_size=atomic, accumulation_steps=micro_batches - 1)
        for batch, atomic, micro_batches in found
    ]


seconds = st.floats(1e-4, 2.0)


@st.composite
def models(draw: st.DrawFn) -> GoodputModel:
    initial = draw(st.integers(1, 40))
    largest = draw(st.none() | st.integers(initial, 200))
    smallest_atomic = draw(st.integers(1, min(largest or initial, 12)))
    return GoodputModel(
        limits=BatchLimits(
            initial_batch_size=initial,
            max_batch_size=largest,
            min_atomic=smallest_atomic,
            max_atomic=draw(st.none() | st.integers(smallest_atomic, 64)),
            accumulation=draw(st.booleans()),
        ),
        statistics=draw(
            st.none() | st.builds(GradientStatistics, sqr=st.floats(0, 10), var=st.floats(0, 100))
        ),
        throughput=draw(
            st.builds(
                ThroughputParameters,
                alpha_g=seconds,
                beta_g=st.floats(0, 0.1),
                alpha_n=seconds,
                beta_n=seconds,
                alpha_l=seconds,
                beta_l=seconds,
                gamma=st.floats(1, 10),
            )
        ),
    )


@settings(max_examples=150, deadline=None)
@given(models(), st.integers(1, 7), st.booleans())
def test_that_the_search_finds_what_trying_everything_finds(
    model: GoodputModel, num_gpus: int, spread: bool
) -> None:
    configuration = on(min(2, num_gpus) if spread else 1, num_gpus)
    tried = [evaluate(model, configuration, batch) for batch in all_choices(model.limits, num_gpus)]
    best = max((estimate.goodput for estimate in tried if estimate is not None), default=None)
    found = best_batch(model, configuration)
    if best is None:
        assert found is None
    else:
        assert found is not None
        assert found.batch in all_choices(model.limits, num_gpus)
        assert found.goodput == pytest.approx(best, rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(models(), st.integers(1, 7))
def test_that_the_best_batch_has_the_prediction_of_evaluating_it(model: GoodputModel, num_gpus: int) -> None:
    found = best_batch(model, on(1, num_gpus))
    if found is not None:
        again = evaluate(model, on(1, num_gpus), found.batch)
        assert again is not None
        assert again.step_time_s == pytest.approx(found.step_time_s)
        assert again.goodput == pytest.approx(found.goodput)
