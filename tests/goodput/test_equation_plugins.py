"""Equations of other packages: registered, fitted, projected for the scheduler."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest

from pollux_slurm.agent.measure.fit_and_batch_choice import TrainingState, Tuner
from pollux_slurm.agent.measure.profile import Situation, StepProfile
from pollux_slurm.errors import ConfigError
from pollux_slurm.goodput import Observation, fit_throughput, iteration_time_s
from pollux_slurm.goodput.equation_plugins import (
    DEFAULT,
    Equations,
    FloatArray,
    FormulaEquation,
    PolluxEquation,
    Situations,
)
from pollux_slurm.model import BatchChoice, BatchLimits, Configuration, GradientStatistics
from tests.agent.steps import step


class Racks(FormulaEquation):
    """A third pair, α_r and β_r, for jobs that span racks of four nodes each."""

    name = "racks"
    parameter_names = (
        "alpha_g", "beta_g", "alpha_l", "beta_l", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma",
    )  # fmt: skip
    nodes_per_rack = 4

    def times_s(self, values: Sequence[float], at: Situations) -> tuple[FloatArray, FloatArray]:
        ag, bg, al, bl, an, bn, ar, br, gamma = values
        grad = ag + bg * at.atomic_batch_size
        further = np.maximum(at.num_gpus - 2, 0)
        within = np.where(at.num_nodes > 1, an + bn * further, al + bl * further)
        sync = np.where(at.num_nodes > self.nodes_per_rack, ar + br * further, within)
        sync = np.where(at.num_gpus > 1, sync, 0.0)
        return grad, (grad**gamma + sync**gamma) ** (1 / gamma)

    def bounds(self) -> Sequence[tuple[float, float]]:
        return [*super().bounds()[:-1], (1.0, 10.0)]

    def guess(self, observations: Sequence[Observation]) -> Sequence[float]:
        grad = min(seen.micro_batch_s for seen in observations)
        size = min(seen.atomic_batch_size for seen in observations)
        return [grad / 2, grad / 2 / size, *[grad / 4, grad / 100] * 3, 1.5]


class Pipeline(FormulaEquation):
    """A pipeline of four stages: m micro-batches micro-batch m + 3 times the slowest stage."""

    name = "pipeline"
    parameter_names = ("stage_s", "hand_over_s")

    def times_s(self, values: Sequence[float], at: Situations) -> tuple[FloatArray, FloatArray]:
        stage, hand_over = values
        grad = (at.atomic_batch_size + 3) * stage
        return grad, grad + hand_over * at.num_nodes

    def guess(self, observations: Sequence[Observation]) -> Sequence[float]:
        return [observations[0].micro_batch_s / (observations[0].atomic_batch_size + 3), 1e-3]


RACK_TRUTH = (0.08, 0.002, 0.03, 0.001, 0.08, 0.003, 0.4, 0.006, 2.0)
PLACES = [(1, 1), (1, 2), (1, 4), (2, 4), (2, 8), (4, 16), (5, 10), (6, 24), (8, 32)]


def observe(
    equation: FormulaEquation, values: Sequence[float], places: Sequence[tuple[int, int]]
) -> list[Observation]:
    rows = [(n, k, m) for n, k in places for m in (16, 64)]
    columns = np.array(rows, dtype=float).T
    grad, last = equation.times_s(
        values, Situations(num_nodes=columns[0], num_gpus=columns[1], atomic_batch_size=columns[2])
    )
    return [
        Observation(num_nodes=n, num_gpus=k, atomic_batch_size=m, micro_batch_s=grad[i], last_time_s=last[i])
        for i, (n, k, m) in enumerate(rows)
    ]


def predict(equation: FormulaEquation, values: Sequence[float], n: int, k: int, m: int) -> float:
    at = Situations(
        num_nodes=np.array([float(n)]), num_gpus=np.array([float(k)]), atomic_batch_size=np.array([float(m)])
    )
    return float(equation.times_s(values, at)[1][0])


def test_that_a_registered_equation_with_a_third_pair_is_fitted() -> None:
    equations = Equations()
    equations.register(Racks())
    equation = equations.get("racks")
    assert isinstance(equation, Racks)
    observations = observe(equation, RACK_TRUTH, PLACES)
    found = equation.fit(observations)
    assert found.reason is None
    assert found.error is not None
    assert found.error < 0.01
    assert found.values is not None
    for n, k in [(3, 12), (7, 28)]:
        truth = predict(equation, RACK_TRUTH, n, k, 32)
        assert predict(equation, found.values, n, k, 32) == pytest.approx(truth, rel=0.03)
    # The paper's equation has no term for the jump between racks.
    plain = fit_throughput(observations)
    assert plain.error is not None
    assert plain.error > 5 * found.error


def test_that_pipeline_stages_are_fitted() -> None:
    found = Pipeline().fit(observe(Pipeline(), (0.01, 0.05), [(1, 1), (2, 8)]))
    assert found.values == pytest.approx((0.01, 0.05), rel=0.01)


def test_that_the_scheduler_is_given_what_the_equation_predicts_where_the_job_was() -> None:
    places = PLACES[:6]
    observations = observe(Racks(), RACK_TRUTH, places)
    theta = Racks().projected(RACK_TRUTH, observations)
    assert theta is not None
    for seen in observations:
        predicted = iteration_time_s(theta, seen.num_nodes, seen.num_gpus, seen.atomic_batch_size)
        assert float(predicted) == pytest.approx(seen.last_time_s, rel=0.2)


def test_that_the_papers_equation_is_there_and_is_fit_throughput() -> None:
    observations = observe(Racks(), RACK_TRUTH, PLACES[:5])
    equation = Equations().get(DEFAULT)
    assert isinstance(equation, PolluxEquation)
    found, direct = equation.fit(observations), fit_throughput(observations)
    assert found.values is not None
    assert equation.theta(found.values) == direct.parameters
    assert equation.projected(found.values, observations) == direct.parameters


def test_that_an_unknown_name_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no throughput equation called 'cables'.*pollux"):
        Equations().get("cables")
    equations = Equations()
    equations.register(Racks())
    with pytest.raises(ConfigError, match="already"):
        equations.register(Racks())


@pytest.mark.parametrize("grad", [math.nan, -1.0, math.inf, 0.0])
def test_that_odd_observations_leave_the_previous_values_with_a_reason(grad: float) -> None:
    odd = dataclasses.replace(observe(Pipeline(), (0.01, 0.05), [(1, 1)])[0], micro_batch_s=grad)
    found = Pipeline().fit([odd], previous=(1.0, 2.0))
    assert found.values == (1.0, 2.0)
    assert found.reason == "none of 1 observations is usable"


def test_that_a_formula_that_raises_leaves_the_previous_values_with_a_reason() -> None:
    class Broken(Pipeline):
        name = "broken"

        def guess(self, observations: Sequence[Observation]) -> Sequence[float]:
            raise ZeroDivisionError("no stages")

    found = Broken().fit(observe(Pipeline(), (0.01, 0.05), [(1, 1)]), previous=(1.0, 2.0))
    assert (found.values, found.reason) == ((1.0, 2.0), "broken: no stages")


def test_that_the_agent_fits_and_reports_the_equation_it_was_given() -> None:
    profile = StepProfile()
    for seen in observe(Pipeline(), (0.01, 0.05), [(1, 2), (2, 4)]):
        for _ in range(8):
            profile.record(
                Situation(
                    num_nodes=seen.num_nodes, num_gpus=seen.num_gpus, atomic_batch_size=seen.atomic_batch_size
                ),
                step(seen.micro_batch_s, seen.last_time_s),
            )
    equations = Equations()
    equations.register(Pipeline())
    here = Configuration(num_nodes=2, num_gpus=4)
    tuner = Tuner(here, profile, equation="pipeline", equations=equations)
    tuner.refit()
    limits = BatchLimits(initial_batch_size=64, max_batch_size=1024)
    training = TrainingState(
        limits=limits,
        statistics=GradientStatistics(sqr=0.001, var=10.0),
        num_updates=100,
        batch=BatchChoice(global_batch_size=64, atomic_batch_size=16, accumulation_steps=0),
    )
    prediction = tuner.predict(training)
    assert prediction is not None
    assert prediction.throughput == pytest.approx(64 / (19 * 0.01 + 0.1), rel=0.15)
    assert tuner.model(limits, None).throughput is not None
    # After a restart the fit is the same, even if the script names another equation.
    for name in ("pipeline", DEFAULT):
        again = Tuner(here, StepProfile(), equation=name, equations=equations)
        again.load_state_dict(tuner.state_dict())
        assert again.predict(training) == prediction


def test_that_an_equation_which_raises_anything_gives_way_to_the_papers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Wrong(Pipeline):
        name = "wrong"

        def times_s(self, values: Sequence[float], at: Situations) -> tuple[FloatArray, FloatArray]:
            raise KeyError("stage")

    profile = StepProfile()
    situation = Situation(num_nodes=1, num_gpus=1, atomic_batch_size=16)
    profile.record(situation, step(0.1, 0.1))
    equations = Equations()
    equations.register(Wrong())
    here = Configuration(num_nodes=1, num_gpus=1)
    tuner = Tuner(here, profile, equation="wrong", equations=equations)
    tuner.refit()
    theta = tuner.model(BatchLimits(initial_batch_size=16), None).throughput
    assert theta is not None
    assert float(iteration_time_s(theta, 1, 1, 16)) == pytest.approx(0.1, rel=0.01)
    assert "throughput equation wrong: KeyError('stage')" in caplog.text
