"""The loss of a fit: its gradient, its Hessian and its initial guesses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pollux_slurm.goodput import Observation, gradient_time_s, iteration_time_s
from pollux_slurm.goodput.fit_loss import StepTimeLoss
from pollux_slurm.model import ThroughputParameters
from tests.goodput.test_fit import EVERYTHING, TRUTH, observe

# Everything; one replica and one node; several nodes only; some of each; one batch size.
SETS = [EVERYTHING, EVERYTHING[:12], EVERYTHING[12:], EVERYTHING[::5], EVERYTHING[::4], EVERYTHING[:4]]


def noisy(observations: list[Observation]) -> list[Observation]:
    rng = np.random.default_rng(3)
    return [
        dataclasses.replace(
            seen,
            micro_batch_s=seen.micro_batch_s * float(rng.uniform(0.8, 1.2)),
            last_time_s=seen.last_time_s * float(rng.uniform(0.8, 1.2)),
            weight=float(rng.uniform(0.5, 2.0)),
        )
        for seen in observations
    ]


@pytest.mark.parametrize("observations", SETS)
def test_that_the_gradient_is_that_of_the_loss(observations: list[Observation]) -> None:
    loss = StepTimeLoss(noisy(observations))
    for start in loss.guesses()[1::2].tolist():
        gradient, _, _ = loss.derivatives(loss.at(start))
        for index, value in enumerate(start):
            step = 1e-6 * value
            above, below = ([*start[:index], value + side, *start[index + 1 :]] for side in (step, -step))
            measured = (loss.at(above).value - loss.at(below).value) / (2 * step)
            assert gradient[index] * value == pytest.approx(measured * value, abs=1e-6)


def test_that_near_exact_data_the_hessian_is_that_of_the_loss() -> None:
    # There the errors are small, and the Gauss-Newton approximation leaves out terms in proportion to them.
    loss = StepTimeLoss(EVERYTHING)
    near = (loss.guess_from(TRUTH)[0] * 1.00001).tolist()
    _, hessian, _ = loss.derivatives(loss.at(near))
    for index, value in enumerate(near):
        step = 1e-5 * value
        sides = ([*near[:index], value + side, *near[index + 1 :]] for side in (step, -step))
        above, below = (loss.derivatives(loss.at(side))[0] for side in sides)
        for other, scale in enumerate(near):
            bend = (above[other] - below[other]) / (2 * step) * value * scale
            assert hessian[index][other] * value * scale == pytest.approx(bend, rel=0.05, abs=0.02)


@pytest.mark.parametrize("observations", SETS)
def test_that_many_guesses_at_once_have_the_loss_of_each(observations: list[Observation]) -> None:
    loss = StepTimeLoss(noisy(observations))
    guesses = loss.guesses()
    each = [loss.at(guess).value for guess in guesses.tolist()]
    assert loss.values(guesses) == pytest.approx(np.array(each), rel=1e-12)


@pytest.mark.parametrize("observations", SETS)
def test_that_the_truth_predicts_itself(observations: list[Observation]) -> None:
    loss = StepTimeLoss(observations)
    point = loss.at(loss.guess_from(TRUTH)[0].tolist())
    assert loss.error(point) == pytest.approx(0.0, abs=1e-9)
    theta = loss.parameters(point.x)
    for seen in observations:
        where = (seen.num_nodes, seen.num_gpus, seen.atomic_batch_size)
        assert float(iteration_time_s(theta, *where)) == pytest.approx(seen.last_time_s)
        assert float(gradient_time_s(theta, seen.atomic_batch_size)) == pytest.approx(seen.micro_batch_s)


def test_that_the_gradient_with_downweighted_outliers_is_that_of_the_loss() -> None:
    odd = [*noisy(EVERYTHING[:-1]), dataclasses.replace(EVERYTHING[-1], last_time_s=30.0)]
    loss = StepTimeLoss(odd)
    start = loss.guesses()[3].tolist()
    assert loss.has_outliers(loss.at(start))
    before = loss.at(start)
    loss.downweight_outliers(before)
    assert loss.error(loss.at(start)) < 0.5 * loss.error(before)
    gradient, _, _ = loss.derivatives(loss.at(start))
    for index, value in enumerate(start):
        step = 1e-6 * value
        above, below = ([*start[:index], value + side, *start[index + 1 :]] for side in (step, -step))
        measured = (loss.at(above).value - loss.at(below).value) / (2 * step)
        assert gradient[index] * value == pytest.approx(measured * value, abs=1e-6)


def test_that_a_guess_at_the_true_gamma_is_the_truth() -> None:
    loss = StepTimeLoss(EVERYTHING)
    truth = loss.guess_from(TRUTH)[0]
    at_two = next(guess for guess in loss.guesses() if guess[-1] == TRUTH.gamma)
    assert at_two == pytest.approx(truth, rel=1e-6)


def test_that_a_guess_from_an_earlier_fit_is_within_the_bounds() -> None:
    loss = StepTimeLoss([observe(1, 2, 32), observe(2, 4, 64)])
    odd = ThroughputParameters(
        alpha_g=float("nan"), beta_g=-1.0, alpha_n=0.0, beta_n=1e300, alpha_l=5.0, beta_l=0.0, gamma=99.0
    )
    guess = loss.guess_from(odd)[0]
    assert (guess >= np.array(loss.low)).all()
    assert (guess <= np.array(loss.high)).all()
