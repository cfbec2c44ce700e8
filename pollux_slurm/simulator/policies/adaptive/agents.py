"""Simulated agents of adaptive jobs: they fit a model and choose the best batch for the job's GPUs.

Fits are kept from round to round, and shared by jobs with the same measurements. Like the artifact's, agents
choose among 50 batch sizes in geometric steps. Jobs have soon measured these few sizes; with arbitrary sizes
there would be a new one, and a new fit, in each epoch.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TypeAlias

from pollux_slurm.goodput import BatchChooser, GoodputEstimate, fit_throughput, geometric_batches
from pollux_slurm.model import (
    BatchChoice,
    BatchLimits,
    Configuration,
    GoodputModel,
    GradientStatistics,
    ThroughputParameters,
)
from pollux_slurm.simulator.engine.job import SimulatedJob
from pollux_slurm.simulator.engine.measurements import Situation
from pollux_slurm.simulator.inputs.batch_splits import split_batch

# A fit ends when a step lowers its loss by less than this part. Fitting on changes averages by chance alone;
# at 1e-2, an ImageNet job that is alone takes 5 % longer.
_MIN_LOSS_REDUCTION = 2e-3
# An agent fits again when it has this many times the situations of its last fit, or a new size. Fitting at
# each new situation makes two and a half times the fits, and average completion times differ by chance alone.
_REFIT_GROWTH = 1.25
# With this noise, no batch size loses statistical efficiency.
_INFINITE_NOISE = GradientStatistics(sqr=1e-12, var=1.0)


@dataclass(slots=True, kw_only=True, eq=False)
class _Fit:
    """Fitted parameters, and the possible choices with them by `_Shape`."""

    theta: ThroughputParameters | None
    choices: dict[_Shape, BatchChooser]


@dataclass(slots=True, kw_only=True, eq=False)
class _AgentState:
    """The state of a job's agent for one GPU type.

    `fit` is a fit to `num_situations` situations of `num_sizes` sizes. At the last check there were
    `num_seen` situations of `sizes`, after `num_measured` measurements. `model` has the gradient statistics
    of its last use.
    """

    num_situations: int
    num_sizes: int
    num_seen: int
    num_measured: int
    sizes: set[_Shape]
    fit: _Fit
    model: GoodputModel


# Whether there are several nodes, and the number of GPUs: the model has no other use for the nodes.
_Shape: TypeAlias = tuple[bool, int]
# Measurements with their times: steps take other times on other placements of as many nodes and GPUs.
_Measurements: TypeAlias = frozenset[tuple[Situation, float, float]]


class Agents:
    """The agents of all jobs of one simulation.

    With `by_throughput`, they ignore statistical efficiency: goodput is throughput.
    """

    def __init__(self, *, by_throughput: bool = False) -> None:
        self._by_throughput = by_throughput
        # By application and GPU type: jobs of one application make the same measurements.
        self._fits: dict[tuple[str, str, _Measurements], _Fit] = {}
        self._geometric: dict[tuple[BatchLimits, int], tuple[BatchChoice, ...]] = {}
        self._states: dict[tuple[str, str], _AgentState] = {}

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        """Return the batch with the highest predicted goodput; without a model, the smallest batch.

        On a GPU type without measurements, the model of another type is used.
        """
        application, num_gpus = job.application, job.num_gpus
        fixed = application.fixed_batch
        if fixed is not None:
            return split_batch(application, fixed, num_gpus)
        of_others = (self._state_of(job, gpu_type) for gpu_type in job.measured.by_type)
        known = self._state_of(job, job.gpu_type) or next((one for one in of_others if one is not None), None)
        found = None if known is None else self._best(known, job, len(job.allocation), num_gpus)
        largest = application.max_batch_size
        if found is not None and found.batch.global_batch_size <= largest:
            return found.batch
        if found is not None:  # rounded up beyond the largest measured batch size
            return split_batch(application, largest, num_gpus)
        return split_batch(
            application, max(application.initial_batch_size, application.min_atomic * num_gpus), num_gpus
        )

    def goodput(self, job: SimulatedJob, num_nodes: int, num_gpus: int) -> float | None:
        """Return the goodput of the best batch, in examples/s; None without a model or an allowed batch."""
        known = self._state_of(job, job.gpu_type)
        found = None if known is None else self._best(known, job, num_nodes, num_gpus)
        return None if found is None else found.goodput

    def models(self, job: SimulatedJob) -> tuple[tuple[str, GoodputModel], ...]:
        """Return the models that the job's agent would report, by GPU type."""
        found = ((gpu_type, self.model(job, gpu_type)) for gpu_type in job.measured.by_type)
        return tuple((gpu_type, model) for gpu_type, model in found if model is not None)

    def model(self, job: SimulatedJob, gpu_type: str) -> GoodputModel | None:
        """Return the model that the job's agent would report; None before its first step on the GPU type."""
        known = self._state_of(job, gpu_type)
        if known is None:
            return None
        statistics = self._statistics(job)
        if known.model.statistics is not statistics:
            known.model = replace(known.model, statistics=statistics)
        return known.model

    def _state_of(self, job: SimulatedJob, gpu_type: str) -> _AgentState | None:
        measured = job.measured
        seen = measured.by_type.get(gpu_type)
        if not seen:
            return None
        key = (job.job.name, gpu_type)
        known = self._states.get(key)
        has_more = known is not None and known.num_measured < measured.num_measured
        measured_anew = has_more and measured.noisy is not None
        if known is not None and known.num_seen == len(seen) and not measured_anew:
            return known
        # Measurements are only ever added, so the new ones are the last.
        sizes: set[_Shape] = set() if known is None else known.sizes
        for nodes, gpus, _ in itertools.islice(seen, 0 if known is None else known.num_seen, None):
            sizes.add((nodes > 1, gpus))
        if (
            known is None
            or measured_anew
            or len(sizes) > known.num_sizes
            or len(seen) >= _REFIT_GROWTH * known.num_situations
        ):
            fit = self._fit(job, gpu_type, None if known is None else known.fit.theta)
            model = GoodputModel(
                limits=job.application.limits,
                statistics=self._statistics(job),
                throughput=fit.theta,
                max_gpus_seen=max(gpus for _, gpus, _ in seen),
                max_nodes_seen=max(nodes for nodes, _, _ in seen),
            )
            known = self._states[key] = _AgentState(
                num_situations=len(seen),
                num_sizes=len(sizes),
                num_seen=len(seen),
                num_measured=measured.num_measured,
                sizes=sizes,
                fit=fit,
                model=model,
            )
        known.num_seen = len(seen)
        return known

    def _statistics(self, job: SimulatedJob) -> GradientStatistics | None:
        return _INFINITE_NOISE if self._by_throughput else job.measured.statistics

    def _fit(self, job: SimulatedJob, gpu_type: str, previous: ThroughputParameters | None) -> _Fit:
        seen = job.measured.by_type[gpu_type]
        measured = frozenset((at, one.micro_batch_s, one.last_time_s) for at, one in seen.items())
        key = (job.application.name, gpu_type, measured)
        found = self._fits.get(key)
        if found is None:
            ordered = [seen[situation] for situation in sorted(seen)]
            if job.measured.noisy is not None:
                ordered = job.measured.noisy.aged(ordered, gpu_type, job.expected_delay_s)
            theta = fit_throughput(ordered, previous=previous, last_gain=_MIN_LOSS_REDUCTION).parameters
            found = _Fit(theta=theta, choices={})
            if job.measured.noisy is None:  # with noise, no other job has the same measurements
                self._fits[key] = found
        return found

    def _best(
        self, known: _AgentState, job: SimulatedJob, num_nodes: int, num_gpus: int
    ) -> GoodputEstimate | None:
        theta, choices = known.fit.theta, known.fit.choices
        if theta is None:
            return None
        shape = (num_nodes > 1, num_gpus)
        found = choices.get(shape)
        if found is None:
            limits = job.application.limits
            configuration = Configuration(num_nodes=num_nodes, num_gpus=num_gpus)
            found = choices[shape] = BatchChooser(
                theta, limits, configuration, self._batches(limits, num_gpus)
            )
        return found.best(self._statistics(job))

    def _batches(self, limits: BatchLimits, num_gpus: int) -> tuple[BatchChoice, ...]:
        if (limits, num_gpus) not in self._geometric:
            self._geometric[limits, num_gpus] = geometric_batches(limits, num_gpus)
        return self._geometric[limits, num_gpus]
