"""The noise scale's estimators against gradients whose |G|² and tr Σ are known."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.torch.gradients.noise_scale import NoiseEstimator, parts_of_consecutive, ratio_interval
from tests.torch.gaussian import coordinates, norms_of_parts

DIMENSIONS = 10_000
STEPS = 4_000
SEEDS = range(5)
M0 = 32
RATIOS = (0.1, 1.0, 10.0)

Update = tuple[float, float, int, int]


def steps_of_parts(sizes: tuple[int, ...], sigma2: float, seed: int) -> Iterator[Update]:
    """Yield S, |ḡ|², M and C of each step whose parts have `sizes`."""
    rng = np.random.default_rng(seed)
    parts = coordinates(rng, sizes, sigma2=sigma2, dimensions=DIMENSIONS, steps=STEPS)
    for total, mean in zip(*norms_of_parts(parts, sizes), strict=True):
        yield float(total), float(mean), sum(sizes), len(sizes)


def steps_of_differences(sizes: tuple[int, int], sigma2: float, seed: int) -> Iterator[Update]:
    """Yield the same of each two consecutive steps of one replica."""
    rng = np.random.default_rng(seed)
    pairs = coordinates(rng, sizes, sigma2=sigma2, dimensions=DIMENSIONS, steps=STEPS // 2)
    before, now = pairs[:, 0], pairs[:, 1]
    norms = ((before**2).sum(1), (now**2).sum(1), ((now - before) ** 2).sum(1))
    for previous_sqr, sqr, difference_sqr in zip(*map(np.ndarray.tolist, norms), strict=True):
        parts_sum, mean = parts_of_consecutive(
            previous_sqr=previous_sqr,
            previous_size=sizes[0],
            sqr=sqr,
            size=sizes[1],
            difference_sqr=difference_sqr,
        )
        yield parts_sum, mean, sum(sizes), 2


def estimate(steps: Iterator[Update], *, horizon_batches: float) -> NoiseEstimator:
    estimator = NoiseEstimator(horizon_batches=horizon_batches)
    estimator.set_initial_batch_size(M0)
    for parts_sum, mean_sqr, num_examples, num_parts in steps:
        assert estimator.update(
            parts_sum=parts_sum, mean_sqr=mean_sqr, num_examples=num_examples, num_parts=num_parts
        )
    return estimator


# Two even replicas; three replicas that do not divide the batch; four parts of very different sizes, as
# micro-batches of uneven replicas are; one replica's consecutive steps, of one size and of two.
SOURCES = [
    pytest.param(steps_of_parts, (16, 16), 0.05, id="two replicas"),
    pytest.param(steps_of_parts, (11, 11, 10), 0.05, id="three uneven replicas"),
    pytest.param(steps_of_parts, (1, 30, 7, 3), 0.05, id="uneven micro-batches"),
    pytest.param(steps_of_differences, (32, 32), 0.1, id="differences"),
    pytest.param(steps_of_differences, (32, 48), 0.1, id="differences of two sizes"),
]


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize(("source", "sizes", "tolerance"), SOURCES)
def test_that_the_mean_of_4000_steps_is_near_the_truth_and_the_interval_contains_it(
    source: object, sizes: tuple[int, ...], tolerance: float, ratio: float
) -> None:
    used = sum(sizes) if source is steps_of_parts else sizes[0]
    sigma2 = ratio * used  # tr Σ at the batch used is `ratio` times |G|² = 1
    covered = {"sqr": 0, "var": 0, "scale": 0}
    widest = 0.0
    for seed in SEEDS:
        estimator = estimate(source(sizes, sigma2, seed), horizon_batches=1e9)  # type: ignore[operator]
        statistics, interval = estimator.statistics(), estimator.interval()
        assert statistics is not None
        assert statistics.sqr == pytest.approx(1.0, rel=tolerance)
        assert statistics.var == pytest.approx(sigma2 / M0, rel=tolerance)
        for name, truth in (("sqr", 1.0), ("var", sigma2 / M0), ("scale", sigma2)):
            low, high = getattr(interval, name)
            covered[name] += low <= truth <= high
        widest = max(widest, (interval.scale[1] - interval.scale[0]) / sigma2)
    assert min(covered.values()) >= 4, covered
    # An interval that contains everything would be of no use.
    assert widest < 0.15


@pytest.mark.parametrize("ratio", RATIOS)
def test_that_the_interval_contains_the_truth_over_the_horizon_that_training_uses(ratio: float) -> None:
    covered = 0
    for seed in range(20):
        steps = steps_of_parts((16, 16), ratio * 32, seed)
        interval = estimate(steps, horizon_batches=500.0).interval()
        low, high = interval.scale
        covered += low <= ratio * 32 <= high
        # Exponential weights over 500 steps are worth 1000 equal ones.
        assert interval.num_effective == pytest.approx(1000, rel=0.05)
        assert (high - low) / (ratio * 32) < 0.3
    assert covered >= 18


@pytest.mark.parametrize("ratio", RATIOS)
def test_that_the_norms_are_those_of_real_vectors(ratio: float) -> None:
    """Compare the fast way to draw norms with gradients drawn coordinate by coordinate."""
    rng, sizes = np.random.default_rng(3), (11, 11, 10)
    sigma2 = ratio * sum(sizes)
    gradient = np.full(DIMENSIONS, 1 / math.sqrt(DIMENSIONS))
    drawn = []
    for _ in range(200):
        parts = np.stack(
            [gradient + rng.normal(scale=math.sqrt(sigma2 / n / DIMENSIONS), size=DIMENSIONS) for n in sizes]
        )[None]
        drawn.append([float(value[0]) for value in norms_of_parts(parts, sizes)])
    short = norms_of_parts(coordinates(rng, sizes, sigma2=sigma2, dimensions=DIMENSIONS, steps=20_000), sizes)
    for index in (0, 1):
        column = np.array(drawn)[:, index]
        assert column.mean() == pytest.approx(short[index].mean(), abs=4 * column.std() / math.sqrt(200))
        assert column.std() == pytest.approx(short[index].std(), rel=0.2)


def test_that_two_given_parts_give_given_numbers() -> None:
    # g1 = (3), g2 = (1) over one example each: ḡ = 2, σ̂² = 10 − 2·4 = 2, |Ĝ|² = 4 − 2/2 = 3.
    estimator = NoiseEstimator()
    estimator.set_initial_batch_size(2)
    estimator.update(parts_sum=10.0, mean_sqr=4.0, num_examples=2, num_parts=2)
    statistics = estimator.statistics()
    assert statistics is not None
    assert (statistics.sqr, statistics.var) == (pytest.approx(3.0), pytest.approx(1.0))


def test_that_groups_are_kept_apart_and_add_up() -> None:
    estimator = NoiseEstimator()
    estimator.set_initial_batch_size(2)
    estimator.update(parts_sum=[10.0, 4.0], mean_sqr=[4.0, 2.0], num_examples=2, num_parts=2)
    first, second = estimator.group_statistics()
    assert (first.sqr, first.var) == (pytest.approx(3.0), pytest.approx(1.0))
    assert (second.sqr, second.var) == (pytest.approx(2.0), 0.0)
    both = estimator.statistics()
    assert both is not None
    assert (both.sqr, both.var) == (pytest.approx(5.0), pytest.approx(1.0))


def test_that_a_new_parameter_group_begins_the_estimate_anew() -> None:
    estimator = NoiseEstimator()
    for _ in range(5):
        estimator.update(parts_sum=[10.0], mean_sqr=[4.0], num_examples=2, num_parts=2)
    estimator.update(parts_sum=[10.0, 4.0], mean_sqr=[4.0, 2.0], num_examples=2, num_parts=2)
    assert estimator.num_updates == 1
    assert len(estimator.group_statistics()) == 2


# ------------------------------------------------------------------------------------------ confidence


def test_that_a_few_steps_exclude_nothing() -> None:
    estimator = estimate(
        (step for _, step in zip(range(3), steps_of_parts((16, 16), 32.0, 0), strict=False)),
        horizon_batches=500.0,
    )
    assert estimator.interval().scale == (0.0, math.inf)
    statistics = estimator.statistics()
    assert statistics is not None
    assert (statistics.noise_low, statistics.noise_high) == (0.0, None)


def test_that_gradients_of_pure_noise_leave_the_noise_scale_open_upwards() -> None:
    rng = np.random.default_rng(1)
    estimator = NoiseEstimator()
    for _ in range(200):
        first, second = rng.normal(size=(2, 1000))
        estimator.update(
            parts_sum=float(first @ first + second @ second),
            mean_sqr=float(np.square((first + second) / 2).sum()),
            num_examples=2,
            num_parts=2,
        )
    low, high = estimator.interval().scale
    assert 50 < low < math.inf
    assert high == math.inf


def test_that_equal_gradients_leave_no_room() -> None:
    estimator = NoiseEstimator()
    for _ in range(100):
        estimator.update(parts_sum=8.0, mean_sqr=4.0, num_examples=2, num_parts=2)
    assert estimator.interval().scale == (0.0, 0.0)
    assert estimator.interval().sqr == pytest.approx((4.0, 4.0))


@given(
    a=st.floats(-1e6, 1e6),
    b=st.floats(-1e6, 1e6),
    sd_a=st.floats(0, 1e6),
    sd_b=st.floats(0, 1e6),
    correlation=st.floats(-1, 1),
)
def test_that_an_interval_has_ends_in_order_and_contains_the_estimate(
    a: float, b: float, sd_a: float, sd_b: float, correlation: float
) -> None:
    low, high = ratio_interval(a, b, sd_a**2, correlation * sd_a * sd_b, sd_b**2)
    assert 0 <= low <= high
    if a > 1e-3 and b > 1e-3:
        assert low <= a / b * (1 + 1e-6)
        assert high >= a / b * (1 - 1e-6)


def test_that_noise_is_large_once_a_small_data_set_is_learnt() -> None:
    """Its gradients sum up to 0, and parts of them are drawn without replacement."""
    generator = np.random.default_rng(0)
    gradients = generator.normal(size=(64, 50))
    gradients -= gradients.mean(axis=0)
    estimator = NoiseEstimator()
    estimator.set_initial_batch_size(16)
    for _ in range(200):
        for batch in generator.permutation(64).reshape(-1, 16):
            parts = gradients[batch].reshape(2, 8, 50).mean(axis=1)
            estimator.update(
                parts_sum=8 * float((parts**2).sum()),
                mean_sqr=float((parts.mean(axis=0) ** 2).sum()),
                num_examples=16,
                num_parts=2,
            )
    low, high = estimator.interval().scale
    assert low > 64
    assert high == math.inf


# ------------------------------------------------------------------------------------------ odd input


def test_that_the_first_estimate_is_not_drawn_towards_zero() -> None:
    estimator = NoiseEstimator(horizon_batches=1e6)
    estimator.set_initial_batch_size(1)
    estimator.update(parts_sum=10.0, mean_sqr=4.0, num_examples=2, num_parts=2)
    statistics = estimator.statistics()
    assert statistics is not None
    assert statistics.sqr == pytest.approx(3.0)


def test_that_an_old_estimate_is_forgotten_over_the_horizon() -> None:
    estimator = NoiseEstimator(horizon_batches=10)
    estimator.set_initial_batch_size(2)
    for norm in [100.0] * 50 + [1.0] * 200:
        estimator.update(parts_sum=2.0 * norm, mean_sqr=norm, num_examples=2, num_parts=2)
    statistics = estimator.statistics()
    assert statistics is not None
    assert statistics.sqr == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(
    ("parts_sum", "mean_sqr"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.inf), (1e300, 1e300)]
)
def test_that_norms_that_cannot_be_leave_the_estimate_alone(parts_sum: float, mean_sqr: float) -> None:
    estimator = NoiseEstimator()
    assert not estimator.update(parts_sum=parts_sum, mean_sqr=mean_sqr, num_examples=4, num_parts=2)
    assert not estimator.update(
        parts_sum=[1.0, parts_sum], mean_sqr=[1.0, mean_sqr], num_examples=4, num_parts=2
    )
    assert estimator.statistics() is None


def test_that_one_part_measures_nothing() -> None:
    estimator = NoiseEstimator()
    assert not estimator.update(parts_sum=4.0, mean_sqr=1.0, num_examples=4, num_parts=1)


def test_that_a_negative_estimate_is_reported_as_zero() -> None:
    # Two opposite gradients: ḡ = 0, so |Ĝ|² = −σ̂²/M < 0.
    estimator = NoiseEstimator()
    estimator.update(parts_sum=2.0, mean_sqr=0.0, num_examples=2, num_parts=2)
    statistics = estimator.statistics()
    assert statistics is not None
    assert statistics.sqr == 0.0
    assert statistics.var > 0


def test_that_a_restored_estimator_goes_on_where_it_was() -> None:
    first, second = NoiseEstimator(), NoiseEstimator()
    for estimator in (first, second):
        estimator.set_initial_batch_size(4)
    for mean in (2.0, 1.0, 1.5, 2.5, 2.25, 1.25):
        first.update(parts_sum=10.0, mean_sqr=mean, num_examples=4, num_parts=2)
    second.load_state_dict(first.state_dict())
    for estimator in (first, second):
        estimator.update(parts_sum=9.0, mean_sqr=1.5, num_examples=4, num_parts=2)
    assert first.statistics() == second.statistics()
    assert first.interval() == second.interval()


def test_that_a_state_of_the_release_before_loads() -> None:
    first, second = NoiseEstimator(), NoiseEstimator()
    for mean in (2.0, 1.0, 1.5, 2.5, 2.25, 1.25):
        first.update(parts_sum=10.0, mean_sqr=mean, num_examples=4, num_parts=2)
    old = first.state_dict() | {"norms": [1.0, 1.0, 0.25, 2.0, 4.0, 2.0], "unparted": [4, 20]}
    del old["drifts"]
    second.load_state_dict(old)
    assert first.statistics() == second.statistics()
    assert first.group_statistics() == second.group_statistics()
    assert first.interval() == second.interval()


def test_that_the_first_parts_of_one_step_replace_what_drifts() -> None:
    estimator = NoiseEstimator()
    estimator.update(parts_sum=100.0, mean_sqr=1.0, num_examples=2, num_parts=2, drifts=True)
    assert estimator.source == "consecutive steps"
    estimator.update(parts_sum=10.0, mean_sqr=4.0, num_examples=2, num_parts=2)
    assert (estimator.source, estimator.num_updates) == ("parts of a step", 1)
