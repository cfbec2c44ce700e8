"""Fit the throughput model to the measured steps, and propose a batch size, in the reporter's thread.

`pollux_slurm.goodput`, and with it scipy, is imported at the first fit: eight processes that start on one
node must not all wait for a solver that only one of them uses.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pollux_slurm.agent.measure.profile import MeasuredStep, Situation, StepProfile, StepTimes
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

_LOG = logging.getLogger(__name__)
# The predicted goodput of a new batch size must be higher by this factor: a change costs a step or two of
# measurements.
_HYSTERESIS = 1.05
# A batch size grows at most by this factor at a time: an early noise estimate may be far off.
_MAX_GROWTH = 2.0
# Steps that the gradient statistics must contain before a batch size is chosen by them.
_WARM_UP_UPDATES = 6
# Weight of steps that were measured on another type of GPU.
_OTHER_TYPE_WEIGHT = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """The state of training at one moment. The statistics contain `num_updates` steps.

    `fitting_atomic` is the micro-batch that fits into memory by earlier jobs of its kind, None where unknown.
    """

    limits: BatchLimits
    statistics: GradientStatistics | None
    num_updates: int
    batch: BatchChoice
    fitting_atomic: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Throughput (examples/s) and statistical efficiency predicted for the current batch size."""

    throughput: float
    efficiency: float


def _observation(times: StepTimes) -> Observation:
    from pollux_slurm.goodput import Observation

    return Observation(
        num_nodes=times.situation.num_nodes,
        num_gpus=times.situation.num_gpus,
        atomic_batch_size=times.situation.atomic_batch_size,
        micro_batch_s=times.micro_batch_s,
        last_time_s=times.last_time_s,
        weight=times.weight,
        confirmed=times.confirmed,
        expired=times.expired,
    )


def _is_below(one: BatchChoice, other: BatchChoice) -> bool:
    return one.global_batch_size < other.global_batch_size


class Tuner:
    """The throughput model of one job, fitted to its measured steps. `refit` and `propose` are thread-safe.

    `configuration` is that of the present run.

    `gpu_type` is that of this run, as in `Situation`, and may be set until the first fit. `num_parameters`
    and `precision` are those of what it trains, None until they are known.
    """

    def __init__(
        self, configuration: Configuration, profile: StepProfile, *, gpu_type: str | None = None
    ) -> None:
        self.configuration, self._profile, self.gpu_type = configuration, profile, gpu_type
        self._lock = threading.Lock()
        self._theta: ThroughputParameters | None = None
        self._fitted_version = 0
        self._most_gpus, self._most_nodes = 0, 0
        self._last_reason: str | None = None
        self.num_parameters: int | None = None
        self.precision: str | None = None

    def add_step(self, step: MeasuredStep) -> None:
        """Add a step of this run to the profile."""
        situation = Situation(
            num_nodes=self.configuration.num_nodes,
            num_gpus=self.configuration.num_gpus,
            atomic_batch_size=step.atomic_batch_size,
            gpu_type=self.gpu_type,
        )
        self._profile.record(situation, step)

    def refit(self) -> None:
        """Fit again if steps were added since the last fit; where that fails the previous model stays."""
        with self._lock:
            version = self._profile.version
            if version == self._fitted_version:
                return
            observations = self._observations()
            if not observations:
                return  # nothing is measured yet, which is not a failure
            self._fit(observations)
            self._fitted_version = version

    def _fit(self, observations: list[Observation]) -> None:
        from pollux_slurm.goodput import fit_throughput

        result = fit_throughput(observations, previous=self._theta)
        if result.reason is not None and result.reason != self._last_reason:
            _LOG.warning("the throughput model was not fitted again: %s", result.reason)
        self._last_reason = result.reason
        if result.reason is None and result.parameters is not None:
            self._theta = result.parameters

    def _observations(self) -> list[Observation]:
        """Return the measured steps, with those of other GPU types scaled to this run's type.

        A configuration that was measured on this type is not taken from another. For the rest, the gradient
        time is scaled by the ratio of the two types' gradient times, measured here over predicted there. The
        time of synchronisation stays as it is.
        """
        from pollux_slurm.goodput import fit_throughput, gradient_time_s

        by_type: dict[str | None, list[Observation]] = {}
        for times in self._profile.medians():
            by_type.setdefault(times.situation.gpu_type, []).append(_observation(times))
        own = by_type.pop(self.gpu_type, [])
        if not own:
            return []
        known = {(seen.num_nodes, seen.num_gpus) for seen in own}
        scaled = []
        for others in by_type.values():
            theta = fit_throughput(others).parameters
            if theta is None:
                continue
            logs = [
                math.log(seen.micro_batch_s / float(gradient_time_s(theta, seen.atomic_batch_size)))
                for seen in own
            ]
            ratio = math.exp(sum(logs) / len(logs))
            scaled += [
                replace(
                    seen,
                    micro_batch_s=ratio * seen.micro_batch_s,
                    last_time_s=ratio * seen.micro_batch_s + max(seen.last_time_s - seen.micro_batch_s, 0.0),
                    weight=_OTHER_TYPE_WEIGHT * seen.weight,
                )
                for seen in others
                if (seen.num_nodes, seen.num_gpus) not in known
            ]
        return own + scaled

    def model(self, limits: BatchLimits, statistics: GradientStatistics | None) -> GoodputModel:
        """Return the current goodput model."""
        gpus, nodes = self._profile.most_seen()
        self._most_gpus, self._most_nodes = max(self._most_gpus, gpus), max(self._most_nodes, nodes)
        return GoodputModel(
            limits=limits,
            statistics=statistics,
            throughput=self._theta,
            max_gpus_seen=self._most_gpus,
            max_nodes_seen=self._most_nodes,
            num_parameters=self.num_parameters,
            precision=self.precision,
        )

    def predict(self, training: TrainingState) -> Prediction | None:
        """Return the prediction for the current batch size; None before the first fit."""
        if self._theta is None:
            return None
        from pollux_slurm.goodput import evaluate

        model = self.model(training.limits, training.statistics)
        estimate = evaluate(model, self.configuration, training.batch)
        if estimate is None:
            return None
        return Prediction(throughput=estimate.throughput, efficiency=estimate.efficiency)

    def propose(self, training: TrainingState) -> BatchChoice:
        """Return the batch size with the highest goodput, or the current one if that is about as good.

        A fixed batch size never changes; no other one does before θ and the statistics of six steps are
        known. Where the noise scale has a confidence interval, the batch size grows by the lower end and
        shrinks by the upper end. A difference within the interval changes nothing. No micro-batch is chosen
        for which jobs of its kind had no memory, unless it has trained with a larger one itself; and no
        accumulation for that, unless the user allows it.
        """
        current, statistics = training.batch, training.statistics
        if (
            training.limits.max_batch_size is None
            or self._theta is None
            or statistics is None
            or training.num_updates < _WARM_UP_UPDATES
        ):
            return current
        fitting = training.fitting_atomic
        if fitting is not None and current.atomic_batch_size <= fitting:
            limits = training.limits
            training = replace(training, limits=limits.narrowed(fitting, accumulation=limits.accumulation))
        if statistics.noise_low is None:
            return self._best(training, statistics) or current
        from pollux_slurm.goodput import conservative_statistics

        initial = training.limits.initial_batch_size
        grown = self._best(training, conservative_statistics(statistics, initial))
        if grown is not None and grown.global_batch_size >= current.global_batch_size:
            return grown
        if statistics.noise_high is None:
            return current
        most = replace(
            statistics, sqr=float(initial), var=statistics.noise_high, noise_low=None, noise_high=None
        )
        shrunk = self._best(training, most)
        return shrunk if shrunk is not None and _is_below(shrunk, current) else current

    def _best(self, training: TrainingState, statistics: GradientStatistics | None) -> BatchChoice | None:
        """Return the best batch size within the allowed growth; None if it is not clearly better."""
        from pollux_slurm.goodput import best_batch, evaluate

        current, limits = training.batch, training.limits
        assert limits.max_batch_size is not None
        most = int(current.global_batch_size * _MAX_GROWTH)
        bounded = max(min(most, limits.max_batch_size), limits.initial_batch_size)
        if limits.min_atomic > bounded:
            return None
        model = self.model(replace(limits, max_batch_size=bounded), statistics)
        best = best_batch(model, self.configuration)
        now = evaluate(model, self.configuration, current)
        if best is None or (now is not None and best.goodput < _HYSTERESIS * now.goodput):
            return None
        return best.batch

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        theta = self._theta
        return {
            "theta": None if theta is None else asdict(theta),
            "most_gpus": self._most_gpus,
            "most_nodes": self._most_nodes,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        theta = state["theta"]
        self._theta = None if theta is None else ThroughputParameters(**theta)
        self._most_gpus, self._most_nodes = state["most_gpus"], state["most_nodes"]
