"""Fit the throughput model to what was measured, and propose a batch size. Runs beside training, not in it.

`pollux_slurm.goodput` (and with it scipy) is imported at the first fit, in the thread that fits: eight
processes that start on one node must not all wait for a solver that only one of them uses.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pollux_slurm.agent.measure.profile import MeasuredStep, ProfileKey, StepProfile, StepTimes
from pollux_slurm.errors import PolluxError
from pollux_slurm.model import (
    BatchChoice,
    BatchLimits,
    Configuration,
    GoodputModel,
    GradientStatistics,
    ThroughputParameters,
)

if TYPE_CHECKING:
    from pollux_slurm.goodput import Observation
    from pollux_slurm.goodput.equations import Equation, Equations

_LOG = logging.getLogger(__name__)
# A new batch size must promise this much more goodput: a change costs a step or two of measurements.
_HYSTERESIS = 1.05
# and may be at most so many times the present one: an early noise estimate may be far off.
_MOST_GROWTH = 2.0
# Steps whose gradients must have entered the statistics before a batch size is chosen by them.
_WARM_UP_UPDATES = 10
# What was measured on another type of GPU counts so much.
_FOREIGN_WEIGHT = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """What training says of itself at one moment. `num_updates` is how many steps the statistics saw."""

    limits: BatchLimits
    statistics: GradientStatistics | None
    num_updates: int
    batch: BatchChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the model in force says of the present batch: examples/s, and efficiency."""

    throughput: float
    efficiency: float


def _observation(times: StepTimes) -> Observation:
    from pollux_slurm.goodput import Observation

    return Observation(
        num_nodes=times.key.num_nodes,
        num_gpus=times.key.num_gpus,
        atomic_batch_size=times.key.atomic_batch_size,
        grad_time_s=times.grad_time_s,
        iter_time_s=times.iter_time_s,
        weight=times.weight,
        confirmed=times.confirmed,
    )


def _is_below(one: BatchChoice, other: BatchChoice) -> bool:
    return one.global_batch_size < other.global_batch_size


class Tuner:
    """Keeps the fitted step times of one job in one configuration. `refit` and `propose` may run in another
    thread.

    `gpu_type` is that of this run, as in `ProfileKey`, and may be set until the first fit. `equation` names
    what is fitted: the paper's unless another was registered with `equations` or as an entry point (see
    `pollux_slurm.goodput.equations`).
    """

    def __init__(
        self,
        configuration: Configuration,
        profile: StepProfile,
        *,
        gpu_type: str | None = None,
        equation: str = "pollux",
        equations: Equations | None = None,
    ) -> None:
        self._configuration, self._profile = configuration, profile
        self.gpu_type, self._name, self._equations = gpu_type, equation, equations
        self._equation: Equation | None = None
        self._lock = threading.Lock()
        # The equation's own values, and what they are to the scheduler.
        self._values: tuple[float, ...] | None = None
        self._theta: ThroughputParameters | None = None
        self._fitted_version = 0
        self._most_gpus, self._most_nodes = 0, 0
        self._last_reason: str | None = None

    def add_step(self, step: MeasuredStep) -> None:
        """Add a step of this run to the profile that is fitted."""
        key = ProfileKey(
            num_nodes=self._configuration.num_nodes,
            num_gpus=self._configuration.num_gpus,
            atomic_batch_size=step.atomic_batch_size,
            gpu_type=self.gpu_type,
        )
        self._profile.record(key, step)

    def refit(self) -> None:
        """Fit again if anything was measured since the last fit; on odd data the old model stays."""
        with self._lock:
            version = self._profile.version
            if version == self._fitted_version:
                return
            if self._equation is None:
                self._equation = self._find_equation()
            observations = self._observations()
            try:
                self._fit(self._equation, observations)
            except Exception as error:
                # Somebody else's formula must not take reports and checkpoint requests down with it.
                if self._equation.name == self._papers().name:
                    raise
                _LOG.warning("throughput equation %s: %r; the paper's is used", self._name, error)
                self._equation, self._values = self._papers(), None
                self._fit(self._equation, observations)
            self._fitted_version = version

    def _fit(self, equation: Equation, observations: list[Observation]) -> None:
        result = equation.fit(observations, previous=self._values)
        if result.reason is not None and result.reason != self._last_reason:
            _LOG.warning("the throughput model was not fitted again: %s", result.reason)
        self._last_reason = result.reason
        if result.reason is None and result.values is not None:
            theta = equation.projected(result.values, observations)
            self._values, self._theta = result.values, theta or self._theta

    def _papers(self) -> Equation:
        from pollux_slurm.goodput.equations import PolluxEquation

        return PolluxEquation()

    def _find_equation(self) -> Equation:
        from pollux_slurm.goodput.equations import Equations

        try:
            equation = (self._equations or Equations()).get(self._name)
        except (PolluxError, ImportError, AttributeError, TypeError) as error:
            # It came from a package that is broken or not there: train on with the paper's.
            _LOG.warning("throughput equation %s: %s; the paper's is used", self._name, error)
            equation = self._papers()
        if self._values is not None and len(self._values) != len(equation.parameter_names):
            self._values = None
        return equation

    def _observations(self) -> list[Observation]:
        """Return what was measured, on GPUs of this run's type as far as there is anything.

        What only another type has seen is scaled to this one: its passes by the ratio of the two types' pass
        times, measured here and predicted there; the time to synchronise is left as it was.
        """
        from pollux_slurm.goodput import fit_throughput, gradient_time_s

        by_type: dict[str | None, list[Observation]] = {}
        for times in self._profile.medians():
            by_type.setdefault(times.key.gpu_type, []).append(_observation(times))
        own = by_type.pop(self.gpu_type, [])
        if not own:
            return []
        known = {(seen.num_nodes, seen.num_gpus) for seen in own}
        foreign = []
        for others in by_type.values():
            theta = fit_throughput(others).parameters
            if theta is None:
                continue
            logs = [
                math.log(seen.grad_time_s / float(gradient_time_s(theta, seen.atomic_batch_size)))
                for seen in own
            ]
            ratio = math.exp(sum(logs) / len(logs))
            foreign += [
                replace(
                    seen,
                    grad_time_s=ratio * seen.grad_time_s,
                    iter_time_s=ratio * seen.grad_time_s + max(seen.iter_time_s - seen.grad_time_s, 0.0),
                    weight=_FOREIGN_WEIGHT * seen.weight,
                )
                for seen in others
                if (seen.num_nodes, seen.num_gpus) not in known
            ]
        return own + foreign

    def model(self, limits: BatchLimits, statistics: GradientStatistics | None) -> GoodputModel:
        """Return the goodput model in force."""
        gpus, nodes = self._profile.most_seen()
        self._most_gpus, self._most_nodes = max(self._most_gpus, gpus), max(self._most_nodes, nodes)
        return GoodputModel(
            limits=limits,
            statistics=statistics,
            throughput=self._theta,
            max_gpus_seen=self._most_gpus,
            max_nodes_seen=self._most_nodes,
        )

    def predict(self, training: TrainingState) -> Prediction | None:
        """Return what the model says of the present batch; None before the first fit."""
        if self._theta is None:
            return None
        from pollux_slurm.goodput import evaluate

        model = self.model(training.limits, training.statistics)
        estimate = evaluate(model, self._configuration, training.batch)
        if estimate is None:
            return None
        return Prediction(throughput=estimate.throughput, efficiency=estimate.efficiency)

    def propose(self, training: TrainingState) -> BatchChoice:
        """Return the batch with the most goodput, or the present one where that is about as good.

        A fixed batch is never changed; nor is any before θ and ten steps' statistics are known. Where the
        noise scale is known to an interval, the batch grows to what its low end calls for, shrinks to what
        its high end does, and stays in between: what the measurements do not tell apart changes nothing.
        """
        present, statistics = training.batch, training.statistics
        if (
            training.limits.max_batch_size is None
            or self._theta is None
            or statistics is None
            or training.num_updates < _WARM_UP_UPDATES
        ):
            return present
        if statistics.noise_low is None:
            return self._best(training, statistics) or present
        from pollux_slurm.goodput import conservative_statistics

        initial = training.limits.initial_batch_size
        grown = self._best(training, conservative_statistics(statistics, initial))
        if grown is not None and grown.global_batch_size >= present.global_batch_size:
            return grown
        if statistics.noise_high is None:
            return present
        most = replace(
            statistics, sqr=float(initial), var=statistics.noise_high, noise_low=None, noise_high=None
        )
        shrunk = self._best(training, most)
        return shrunk if shrunk is not None and _is_below(shrunk, present) else present

    def _best(self, training: TrainingState, statistics: GradientStatistics | None) -> BatchChoice | None:
        """Return the best batch by these statistics, within what one change may be; None if no better."""
        from pollux_slurm.goodput import best_batch, evaluate

        present, limits = training.batch, training.limits
        assert limits.max_batch_size is not None
        most = int(present.global_batch_size * _MOST_GROWTH)
        bounded = max(min(most, limits.max_batch_size), limits.initial_batch_size)
        if limits.min_atomic > bounded:
            return None
        model = self.model(replace(limits, max_batch_size=bounded), statistics)
        best = best_batch(model, self._configuration)
        now = evaluate(model, self._configuration, present)
        if best is None or (now is not None and best.goodput < _HYSTERESIS * now.goodput):
            return None
        return best.batch

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        theta = self._theta
        return {
            "theta": None if theta is None else asdict(theta),
            "values": None if self._values is None else list(self._values),
            "most_gpus": self._most_gpus,
            "most_nodes": self._most_nodes,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        theta = state["theta"]
        self._theta = None if theta is None else ThroughputParameters(**theta)
        values = state.get("values")
        self._values = None if values is None else tuple(values)
        self._most_gpus, self._most_nodes = state["most_gpus"], state["most_nodes"]
