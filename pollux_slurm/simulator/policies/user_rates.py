"""How fast jobs train with their users' batch: the true step times, as an oracle knows them.

T[j, k]: steps a second of job j on type k, packed. A step has the user's batch, whatever the GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator.engine.cluster import Cluster, NodeGroup
from pollux_slurm.simulator.engine.job import SimulatedJob
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.batch_splits import packed_step_time_s, split_batch, user_batch

FloatArray = npt.NDArray[np.float64]


def most_replicas(job: SimulatedJob) -> int:
    """Return the most GPUs over which a job's batch can be split."""
    return 1 if job.application.name == "ncf" else job.job.batch_size // job.application.min_atomic


def step_s(job: SimulatedJob, num_gpus: int, cluster: Cluster) -> float:
    """Return the true time of one step on as few nodes as possible; one GPU takes two micro-batches."""
    batch = split_batch(job.application, job.job.batch_size, num_gpus, accumulate_on_one_gpu=True)
    return packed_step_time_s(
        job.application, num_gpus, cluster.gpus_per_node, batch.atomic_batch_size, batch.accumulation_steps
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """A training at one batch: progress at the end of each epoch, steps to there, progress of a step."""

    ends: tuple[float, ...]
    steps: tuple[float, ...]
    gains: tuple[float, ...]


class UserRates:
    """Rates, and steps that are left, of jobs at their users' size and batch; computed once for each kind."""

    def __init__(self) -> None:
        self._rates: dict[tuple[object, ...], float] = {}
        self._trainings: dict[tuple[str, int], _Steps] = {}

    def of(self, jobs: Sequence[SimulatedJob], cluster: Cluster) -> FloatArray:
        """Return T of shape `(J, K)`, types in the cluster's order.

        It is 0 where a type has too few GPUs, or no step time; raises `TraceError` where none has one.
        """
        groups = {group.gpu_type: group for group in cluster.groups or cluster.node_groups[:1]}
        counts = type_counts(cluster)
        found = np.zeros((len(jobs), len(counts)))
        for row, job in enumerate(jobs):
            unknown: TraceError | None = None
            for at, group in enumerate(groups.values()):
                if counts[at] >= job.job.num_replicas:
                    try:
                        found[row, at] = self._rate(job, group, job.job.num_replicas)
                    except TraceError as error:
                        unknown = error
            if unknown is not None and not found[row].any():
                raise unknown
        return found

    def on(self, job: SimulatedJob, num_gpus: int, cluster: Cluster) -> float:
        """Return the steps a second on packed GPUs of the first type; 0 for more than the batch allows."""
        if num_gpus > min(most_replicas(job), job.application.most_gpus):
            return 0.0
        return self._rate(job, cluster.groups[0] if cluster.groups else cluster.node_groups[0], num_gpus)

    def _rate(self, job: SimulatedJob, group: NodeGroup, num_gpus: int) -> float:
        application = job.application
        key = (application.name, num_gpus, job.job.batch_size, group.gpu_type)
        found = self._rates.get(key)
        if found is None:
            batch = user_batch(job.job, application, num_gpus)
            whole, rest = divmod(num_gpus, group.gpus_per_node)
            placement = (group.gpus_per_node,) * whole + ((rest,) if rest else ())
            try:
                time = application.step_time(placement, batch.atomic_batch_size, group.gpu_type)
            except TraceError as error:
                raise TraceError(f"job {job.job.name}: {error}") from None
            own = group.gpu_type in application.gpu_types
            micro_batch_s = time.micro_batch_s / (1.0 if own else group.speed_of(application.name))
            all_s = micro_batch_s * (batch.accumulation_steps + 1) + time.sync_s
            found = self._rates[key] = 1.0 / all_s
        return found

    def steps_left(self, job: SimulatedJob) -> float:
        """Return the steps of the user's batch to the end of the training."""
        training, work = self._training(job.application, self._batch_size(job)), job.job.work
        epoch = min(job.epoch, len(training.ends) - 1)
        now = (training.ends[epoch] * work - job.progress) / training.gains[epoch]
        return max(now + (training.steps[-1] - training.steps[epoch]) * work, 0.0)

    def steps(self, job: SimulatedJob) -> float:
        """Return the steps of the user's batch of the whole training."""
        return self._training(job.application, self._batch_size(job)).steps[-1] * job.job.work

    def _batch_size(self, job: SimulatedJob) -> int:
        return user_batch(job.job, job.application, job.job.num_replicas).global_batch_size

    def _training(self, application: Application, batch_size: int) -> _Steps:
        key = (application.name, batch_size)
        found = self._trainings.get(key)
        if found is None:
            epochs = range(application.num_epochs)
            ends = [application.epoch_end(epoch) for epoch in epochs]
            gains = [application.step_progress(batch_size, epoch) for epoch in epochs]
            of_epochs = [
                (end - begin) / gain for begin, end, gain in zip([0.0, *ends], ends, gains, strict=False)
            ]
            found = self._trainings[key] = _Steps(
                ends=tuple(ends), steps=tuple(accumulate(of_epochs)), gains=tuple(gains)
            )
        return found


def type_counts(cluster: Cluster) -> list[int]:
    """Return the GPUs that may be allocated of each type, in the cluster's order of types."""
    found = dict.fromkeys(cluster.gpu_types, 0)
    for kind, gpus in zip(cluster.node_types, cluster.node_gpus, strict=True):
        found[kind] += gpus
    return list(found.values())
