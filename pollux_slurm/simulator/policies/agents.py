"""What the agents of adaptive jobs know and do: fitted models, and the batch that suits the GPUs held.

Kept from round to round, and shared by jobs that have measured the same. Agents choose among 50 batch sizes
in geometric steps, as the artifact's do: of the same few, jobs soon have measured all that they use, where
any size at all would be another one each epoch, and a fit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
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
from pollux_slurm.simulator.engine.job import SimulatedJob, Situation
from pollux_slurm.simulator.inputs.batch_splits import split_batch

# A fit ends with a step that lowers its loss by less than this part. To go on to the least would change
# averages by chance alone, for more work; at 1e-2, an ImageNet job alone took 5 % longer.
_LAST_GAIN = 2e-3
# Of sizes measured before, an agent fits anew once there are so many times the situations (batch sizes,
# mostly) of its last fit. To fit at each one is two and a half times the fits, and average completion times
# are the same but for chance.
_FURTHER = 1.25
# So much noise that no batch size loses efficiency.
_ALL_NOISE = GradientStatistics(sqr=1e-12, var=1.0)


@dataclass(slots=True, kw_only=True, eq=False)
class _Fit:
    """The parameters that fit what was measured, and what can be chosen with them, by `_Shape`."""

    theta: ThroughputParameters | None
    choices: dict[_Shape, BatchChooser]


@dataclass(slots=True, kw_only=True, eq=False)
class _Known:
    """What a job's agent knows of one GPU type: a fit to as many situations of as many sizes.

    `num_seen` situations, of `sizes`, there were when that was last looked at, after `num_measured`
    measurements. `model` has the statistics of
    when it was last asked for.
    """

    num_situations: int
    num_sizes: int
    num_seen: int
    num_measured: int
    sizes: set[_Shape]
    fit: _Fit
    model: GoodputModel


# Whether nodes are several, and GPUs: one node fewer or more decides only if it is the only one.
_Shape: TypeAlias = tuple[bool, int]
# What was measured where: on other placements of as many nodes and GPUs, steps take other times.
_Seen: TypeAlias = frozenset[tuple[Situation, float, float]]


class Agents:
    """The agents of all jobs of one simulation.

    With `by_throughput`, they take every example for as useful as any other, as if larger batches cost no
    efficiency: throughput takes the place of goodput.
    """

    def __init__(self, *, by_throughput: bool = False) -> None:
        self._by_throughput = by_throughput
        # By application and GPU type: jobs of one application come to know the same.
        self._fits: dict[tuple[str, str, _Seen], _Fit] = {}
        self._geometric: dict[tuple[BatchLimits, int], tuple[BatchChoice, ...]] = {}
        self._known: dict[tuple[str, str], _Known] = {}

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        """Return the batch with the highest goodput by the job's model; its smallest one without a model.

        On a GPU type that was never measured, the batch that was best on another is a fair first one.
        """
        application, num_gpus = job.application, job.num_gpus
        fixed = application.fixed_batch
        if fixed is not None:
            return split_batch(application, fixed, num_gpus)
        known = self._know(job, job.gpu_type) or next(
            (known for gpu_type in job.seen if (known := self._know(job, gpu_type)) is not None), None
        )
        found = None if known is None else self._best(known, job, len(job.pieces), num_gpus)
        largest = application.max_batch_size
        if found is not None and found.batch.global_batch_size <= largest:
            return found.batch
        if found is not None:  # rounded up beyond what was ever run
            return split_batch(application, largest, num_gpus)
        return split_batch(
            application, max(application.initial_batch_size, application.min_atomic * num_gpus), num_gpus
        )

    def goodput(self, job: SimulatedJob, num_nodes: int, num_gpus: int) -> float | None:
        """Return the goodput of the best batch, in examples/s; None without a model or an allowed batch."""
        known = self._know(job, job.gpu_type)
        found = None if known is None else self._best(known, job, num_nodes, num_gpus)
        return None if found is None else found.goodput

    def models(self, job: SimulatedJob) -> tuple[tuple[str, GoodputModel], ...]:
        """Return what the job's agent would report of each GPU type that it has run on."""
        found = ((gpu_type, self.model(job, gpu_type)) for gpu_type in job.seen)
        return tuple((gpu_type, model) for gpu_type, model in found if model is not None)

    def model(self, job: SimulatedJob, gpu_type: str) -> GoodputModel | None:
        """Return what the job's agent would report of a GPU type; None before its first step there."""
        known = self._know(job, gpu_type)
        if known is None:
            return None
        statistics = self._statistics(job)
        if known.model.statistics is not statistics:
            known.model = replace(known.model, statistics=statistics)
        return known.model

    def _know(self, job: SimulatedJob, gpu_type: str) -> _Known | None:
        seen = job.seen.get(gpu_type)
        if not seen:
            return None
        key = (job.job.name, gpu_type)
        known = self._known.get(key)
        measured_anew = job.noisy is not None and known is not None and known.num_measured < job.num_measured
        if known is not None and known.num_seen == len(seen) and not measured_anew:
            return known
        # What is measured is only ever added to.
        sizes: set[_Shape] = set() if known is None else known.sizes
        for nodes, gpus, _ in itertools.islice(seen, 0 if known is None else known.num_seen, None):
            sizes.add((nodes > 1, gpus))
        if (
            known is None
            or measured_anew
            or len(sizes) > known.num_sizes
            or len(seen) >= _FURTHER * known.num_situations
        ):
            fit = self._fit(job, gpu_type, None if known is None else known.fit.theta)
            model = GoodputModel(
                limits=job.application.limits,
                statistics=self._statistics(job),
                throughput=fit.theta,
                max_gpus_seen=max(gpus for _, gpus, _ in seen),
                max_nodes_seen=max(nodes for nodes, _, _ in seen),
            )
            known = self._known[key] = _Known(
                num_situations=len(seen),
                num_sizes=len(sizes),
                num_seen=len(seen),
                num_measured=job.num_measured,
                sizes=sizes,
                fit=fit,
                model=model,
            )
        known.num_seen = len(seen)
        return known

    def _statistics(self, job: SimulatedJob) -> GradientStatistics | None:
        return _ALL_NOISE if self._by_throughput else job.statistics

    def _fit(self, job: SimulatedJob, gpu_type: str, previous: ThroughputParameters | None) -> _Fit:
        seen = job.seen[gpu_type]
        measured = frozenset((at, one.grad_time_s, one.iter_time_s) for at, one in seen.items())
        key = (job.application.name, gpu_type, measured)
        found = self._fits.get(key)
        if found is None:
            ordered = [seen[situation] for situation in sorted(seen)]
            theta = fit_throughput(ordered, previous=previous, last_gain=_LAST_GAIN).parameters
            found = _Fit(theta=theta, choices={})
            if job.noisy is None:  # else nobody measures the same again
                self._fits[key] = found
        return found

    def _best(
        self, known: _Known, job: SimulatedJob, num_nodes: int, num_gpus: int
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


def num_sizes(seen: Iterable[Situation]) -> int:
    """Return how many sizes were measured: numbers of GPUs, on one node and on several."""
    return len({(nodes > 1, gpus) for nodes, gpus, _ in seen})
