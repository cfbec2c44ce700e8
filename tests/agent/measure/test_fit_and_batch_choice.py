"""The fitted throughput model, and the batch size that it proposes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pollux_slurm.agent.measure.fit_and_batch_choice import TrainingState, Tuner
from pollux_slurm.agent.measure.profile import Situation, StepProfile
from pollux_slurm.model import BatchChoice, BatchLimits, Configuration, GradientStatistics
from tests.agent.steps import step

LIMITS = BatchLimits(initial_batch_size=64, max_batch_size=1024, min_atomic=16, max_atomic=256)
QUIET = GradientStatistics(sqr=1.0, var=0.01)
NOISY = GradientStatistics(sqr=0.001, var=10.0)
PRESENT = BatchChoice(global_batch_size=64, atomic_batch_size=32, accumulation_steps=0)


def training(
    statistics: GradientStatistics | None = NOISY,
    *,
    limits: BatchLimits = LIMITS,
    num_updates: int = 100,
    batch: BatchChoice = PRESENT,
) -> TrainingState:
    return TrainingState(limits=limits, statistics=statistics, num_updates=num_updates, batch=batch)


@pytest.fixture
def tuner() -> Tuner:
    """Two replicas whose fixed time per micro-batch dominates, so that larger batches pay."""
    profile = StepProfile()
    for atomic, grad in [(16, 0.105), (32, 0.11), (64, 0.12)]:
        situation = Situation(num_nodes=1, num_gpus=2, atomic_batch_size=atomic)
        for _ in range(10):
            profile.record(situation, step(grad, grad + 0.05))
    tuner = Tuner(Configuration(num_nodes=1, num_gpus=2), profile)
    tuner.refit()
    return tuner


def test_that_nothing_is_predicted_proposed_or_said_before_anything_was_measured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    profile = StepProfile()
    tuner = Tuner(Configuration(num_nodes=1, num_gpus=2), profile)
    tuner.refit()
    # As a checkpoint has it that was written before the first measured step.
    profile.load_state_dict(StepProfile().state_dict())
    tuner.refit()
    assert not caplog.records
    assert tuner.predict(training()) is None
    assert tuner.propose(training()) == PRESENT
    assert tuner.model(LIMITS, None).throughput is None


def test_that_the_prediction_is_near_what_was_measured(tuner: Tuner) -> None:
    prediction = tuner.predict(training())
    assert prediction is not None
    assert prediction.throughput == pytest.approx(64 / 0.16, rel=0.1)


def test_that_noise_lets_the_batch_grow_but_at_most_to_twice_the_current_one(tuner: Tuner) -> None:
    proposed = tuner.propose(training())
    assert proposed.global_batch_size == 128
    assert proposed.atomic_batch_size * 2 * (proposed.accumulation_steps + 1) == 128


def test_that_without_noise_the_batch_stays(tuner: Tuner) -> None:
    assert tuner.propose(training(QUIET)) == PRESENT


def test_that_a_fixed_batch_is_never_changed(tuner: Tuner) -> None:
    assert tuner.propose(training(limits=BatchLimits(initial_batch_size=64))) == PRESENT


def test_that_few_updates_choose_nothing(tuner: Tuner) -> None:
    assert tuner.propose(training(num_updates=3)) == PRESENT


@given(
    initial=st.integers(2, 200),
    factor=st.floats(1.0, 20.0),
    low=st.integers(1, 64),
    span=st.none() | st.integers(0, 200),
    accumulation=st.booleans(),
    noise=st.floats(-3, 4),
    wanted=st.integers(1, 4000),
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_that_proposals_stay_within_the_users_bounds_and_twice_the_current_batch(
    tuner: Tuner,
    initial: int,
    factor: float,
    low: int,
    span: int | None,
    accumulation: bool,
    noise: float,
    wanted: int,
) -> None:
    most = max(int(initial * factor), initial, low)
    limits = BatchLimits(
        initial_batch_size=initial,
        max_batch_size=most,
        min_atomic=low,
        max_atomic=None if span is None else low + span,
        accumulation=accumulation,
    )
    batch = min(max(initial, wanted, 2 * low), most)
    passes = -(-batch // (2 * (limits.max_atomic or batch)))
    present = BatchChoice(
        global_batch_size=batch,
        atomic_batch_size=-(-batch // (2 * passes)),
        accumulation_steps=passes - 1,
    )
    statistics = GradientStatistics(sqr=1.0, var=10.0**noise)
    proposed = tuner.propose(training(statistics, limits=limits, batch=present))
    if proposed == present:
        return
    assert initial <= proposed.global_batch_size <= min(most, 2 * present.global_batch_size)
    assert proposed.atomic_batch_size <= (most if limits.max_atomic is None else limits.max_atomic)
    # M0 itself may be less per replica than the lower bound, and must stay possible.
    assert proposed.atomic_batch_size >= low or proposed.global_batch_size == initial
    assert proposed.accumulation_steps == 0 or accumulation


def test_that_the_batch_never_exceeds_the_users_maximum(tuner: Tuner) -> None:
    limits = BatchLimits(initial_batch_size=64, max_batch_size=80, min_atomic=16, max_atomic=256)
    assert 64 <= tuner.propose(training(limits=limits)).global_batch_size <= 80


def test_that_a_restored_tuner_predicts_the_same_and_keeps_the_largest_allocation(tuner: Tuner) -> None:
    tuner.model(LIMITS, None)
    other = Tuner(Configuration(num_nodes=1, num_gpus=2), StepProfile())
    other.load_state_dict(tuner.state_dict())
    assert other.predict(training()) == tuner.predict(training())
    model = other.model(LIMITS, NOISY)
    assert (model.max_gpus_seen, model.max_nodes_seen) == (2, 1)


def noise(low: float, scale: float, high: float | None) -> GradientStatistics:
    """Return statistics of the noise scale `scale`, known from `low` to `high`."""
    return GradientStatistics(sqr=1.0, var=scale / 64, noise_low=low, noise_high=high)


LARGE = BatchChoice(global_batch_size=512, atomic_batch_size=256, accumulation_steps=0)


def test_that_the_batch_grows_by_the_lower_end_of_the_noise_interval(tuner: Tuner) -> None:
    sure = tuner.propose(training(noise(590.0, 600.0, 610.0), batch=LARGE)).global_batch_size
    unsure = tuner.propose(training(noise(10.0, 600.0, None), batch=LARGE)).global_batch_size
    assert unsure == 512
    assert tuner.propose(training(noise(500.0, 600.0, None))).global_batch_size == 128
    assert tuner.propose(training(noise(0.0, 600.0, None))) == PRESENT
    assert sure <= 512


def test_that_the_batch_shrinks_by_the_upper_end_of_the_noise_interval(tuner: Tuner) -> None:
    assert tuner.propose(training(noise(0.0, 1.0, 5.0), batch=LARGE)).global_batch_size < 128
    assert tuner.propose(training(noise(0.0, 1.0, 2000.0), batch=LARGE)) == LARGE


def test_that_an_unbounded_noise_interval_changes_nothing(tuner: Tuner) -> None:
    for batch in (PRESENT, LARGE):
        assert tuner.propose(training(noise(0.0, 600.0, None), batch=batch)) == batch


def measured_on(*types: tuple[str, float, tuple[int, ...]]) -> StepProfile:
    """Return a profile of GPU types: `grad` seconds per micro-batch of 16 examples, 50 ms to synchronise."""
    profile = StepProfile()
    for gpu_type, grad, sizes in types:
        for num_gpus in sizes:
            for atomic in (16, 32):
                situation = Situation(
                    num_nodes=1, num_gpus=num_gpus, atomic_batch_size=atomic, gpu_type=gpu_type
                )
                pass_s = grad * atomic / 16
                for _ in range(8):
                    profile.record(situation, step(pass_s, pass_s + (0.05 if num_gpus > 1 else 0.0)))
    return profile


def predicted_step_s(tuner: Tuner) -> float:
    prediction = tuner.predict(training())
    assert prediction is not None
    return 64 / prediction.throughput


def test_that_times_of_another_gpu_type_are_not_mixed_with_this_ones() -> None:
    here = Configuration(num_nodes=1, num_gpus=2)
    profile = measured_on(("slow", 0.4, (1, 2, 4)), ("fast", 0.1, (1, 2, 4)))
    for gpu_type, step_s in (("slow", 0.85), ("fast", 0.25)):
        tuner = Tuner(here, profile, gpu_type=gpu_type)
        tuner.refit()
        assert predicted_step_s(tuner) == pytest.approx(step_s, rel=0.05)


def test_that_configurations_measured_on_another_type_only_are_scaled_to_this_one() -> None:
    profile = measured_on(("slow", 0.4, (1, 2, 4)), ("fast", 0.1, (1,)))
    tuner = Tuner(Configuration(num_nodes=1, num_gpus=2), profile, gpu_type="fast")
    tuner.refit()
    # Without the other type's steps, synchronisation would count as free: 0.2 s.
    assert predicted_step_s(tuner) == pytest.approx(0.25, rel=0.05)


def test_that_a_type_without_measurements_leaves_the_model_as_it_was(tuner: Tuner) -> None:
    other = Tuner(Configuration(num_nodes=1, num_gpus=2), measured_on(("slow", 0.4, (1, 2))), gpu_type="fast")
    other.load_state_dict(tuner.state_dict())
    other.refit()
    assert other.predict(training()) == tuner.predict(training())


def test_that_one_slow_minute_on_several_nodes_does_not_count_as_a_slow_network() -> None:
    at = [0.0]
    profile = StepProfile(now=lambda: at[0])

    def train(nodes: int, gpus: int, atomic: int, *, slow: float, minutes: int) -> None:
        situation = Situation(num_nodes=nodes, num_gpus=gpus, atomic_batch_size=atomic)
        for _ in range(300 * minutes):
            at[0] += 0.2
            profile.record(situation, step(0.1 * slow, 0.15 * slow))

    train(1, 2, 32, slow=1.0, minutes=3)
    train(1, 4, 32, slow=1.0, minutes=3)
    tuner = Tuner(Configuration(num_nodes=2, num_gpus=8), profile)
    tuner.refit()
    expected = tuner.predict(training())
    assert expected is not None
    for slow, minutes, of_expected in ((10.0, 1, 1.0), (1.0, 2, 1.0), (10.0, 6, 0.1)):
        train(2, 8, 32, slow=slow, minutes=minutes)
        tuner.refit()
        found = tuner.predict(training())
        assert found is not None
        assert found.throughput == pytest.approx(of_expected * expected.throughput, rel=0.15)


def test_that_no_micro_batch_is_chosen_that_did_not_fit_for_jobs_of_its_kind(tuner: Tuner) -> None:
    for fitting in (None, 64, 256):
        known = replace(training(), fitting_atomic=fitting)
        assert tuner.propose(known) == tuner.propose(training())
    most = tuner.propose(replace(training(), fitting_atomic=40))
    assert most.atomic_batch_size <= 40
    assert most.global_batch_size == 2 * most.atomic_batch_size * (most.accumulation_steps + 1)
    assert most.accumulation_steps == 0  # the user allows none
    accumulating = training(limits=replace(LIMITS, accumulation=True))
    assert tuner.propose(replace(accumulating, fitting_atomic=32)).accumulation_steps > 0
    # It has trained with 48 itself, so that the others' 40 say nothing.
    large = BatchChoice(global_batch_size=96, atomic_batch_size=48, accumulation_steps=0)
    own = training(batch=large)
    assert tuner.propose(replace(own, fitting_atomic=40)) == tuner.propose(own)
    assert tuner.propose(own).atomic_batch_size > 40
