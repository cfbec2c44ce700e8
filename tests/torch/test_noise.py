"""The noise scale's estimators against gradients whose |G|² and tr Σ are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pollux_slurm.torch.noise import NoiseEstimator, parts_of_consecutive

DIMENSIONS = 10_000
STEPS = 400
M0 = 32


def estimate(sizes: tuple[int, ...], ratio: float, seed: int) -> tuple[float, float]:
    """Return the estimates of |G|² and tr Σ at M0 over their true values; tr Σ/|G|² is `ratio` at M = Σ n."""
    rng = np.random.default_rng(seed)
    total = sum(sizes)
    gradient = np.full(DIMENSIONS, 1 / math.sqrt(DIMENSIONS))  # |G|² = 1
    sigma2 = ratio * total
    estimator = NoiseEstimator(horizon_batches=1e9)
    estimator.set_initial_batch_size(M0)
    for _ in range(STEPS):
        parts = [
            gradient + rng.normal(scale=math.sqrt(sigma2 / n / DIMENSIONS), size=DIMENSIONS) for n in sizes
        ]
        mean = sum(n / total * part for n, part in zip(sizes, parts, strict=True))
        assert estimator.update(
            parts_sum=sum(n * float(part @ part) for n, part in zip(sizes, parts, strict=True)),
            mean_sqr=float(mean @ mean),
            num_examples=total,
            num_parts=len(sizes),
        )
    statistics = estimator.statistics()
    assert statistics is not None
    return statistics.sqr, statistics.var / (sigma2 / M0)


@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("sizes", [(16, 16), (11, 11, 10), (1, 30, 7, 3)])
def test_that_parts_of_any_sizes_give_the_true_norm_and_variance(
    sizes: tuple[int, ...], ratio: float
) -> None:
    sqr, var = estimate(sizes, ratio, seed=3)
    assert sqr == pytest.approx(1.0, rel=0.05)
    assert var == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
def test_that_consecutive_steps_give_the_true_norm_and_variance(ratio: float) -> None:
    rng = np.random.default_rng(4)
    sizes = [32, 48]
    gradient = np.full(DIMENSIONS, 1 / math.sqrt(DIMENSIONS))
    sigma2 = ratio * 32
    estimator = NoiseEstimator(horizon_batches=1e9)
    estimator.set_initial_batch_size(M0)
    previous, previous_size = None, 0
    for step in range(STEPS):
        size = sizes[step % 2]
        now = gradient + rng.normal(scale=math.sqrt(sigma2 / size / DIMENSIONS), size=DIMENSIONS)
        if previous is not None:
            difference = now - previous
            parts_sum, mean_sqr = parts_of_consecutive(
                previous_sqr=float(previous @ previous),
                previous_size=previous_size,
                sqr=float(now @ now),
                size=size,
                difference_sqr=float(difference @ difference),
            )
            estimator.update(
                parts_sum=parts_sum, mean_sqr=mean_sqr, num_examples=size + previous_size, num_parts=2
            )
        previous, previous_size = now, size
    statistics = estimator.statistics()
    assert statistics is not None
    assert statistics.sqr == pytest.approx(1.0, rel=0.1)
    assert statistics.var == pytest.approx(sigma2 / M0, rel=0.1)


def test_that_two_hand_made_parts_give_hand_made_numbers() -> None:
    # g1 = (3), g2 = (1) over one example each: ḡ = 2, σ̂² = 10 − 2·4 = 2, |Ĝ|² = 4 − 2/2 = 3.
    estimator = NoiseEstimator()
    estimator.set_initial_batch_size(2)
    estimator.update(parts_sum=10.0, mean_sqr=4.0, num_examples=2, num_parts=2)
    statistics = estimator.statistics()
    assert statistics is not None
    assert (statistics.sqr, statistics.var) == (pytest.approx(3.0), pytest.approx(1.0))


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


@pytest.mark.parametrize(("parts_sum", "mean_sqr"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.inf)])
def test_that_non_finite_norms_leave_the_estimate_alone(parts_sum: float, mean_sqr: float) -> None:
    estimator = NoiseEstimator()
    assert not estimator.update(parts_sum=parts_sum, mean_sqr=mean_sqr, num_examples=4, num_parts=2)
    assert estimator.statistics() is None


def test_that_one_part_says_nothing() -> None:
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
    first.update(parts_sum=10.0, mean_sqr=2.0, num_examples=4, num_parts=2)
    second.load_state_dict(first.state_dict())
    for estimator in (first, second):
        estimator.update(parts_sum=9.0, mean_sqr=1.5, num_examples=4, num_parts=2)
    assert first.statistics() == second.statistics()
