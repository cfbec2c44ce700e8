"""SLAQ (SoCC 2017): GPUs go where they lower the loss most in the coming round.

SLAQ predicts each job's loss curve from its history. No loss is in the traces, so an exponential curve stands
in for it: the same for all jobs, over the true part of the training that is done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.batch_splits import split_batch
from pollux_slurm.simulator.policies.packing import place_counts
from pollux_slurm.simulator.policies.user_rates import UserRates

# The normalised loss is e^(−5·part done): a whole training lowers it from 1 to 0.007.
_DECAY = 5.0


class SlaqPolicy:
    """One GPU for each job, then each further GPU to the largest predicted fall of normalised loss."""

    resizes = True

    def __init__(self) -> None:
        self._rates = UserRates()

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return split_batch(job.application, job.job.batch_size, job.num_gpus)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        counts = {job.job.name: 0 for job in jobs}
        gains = {job.job.name: self._gain(job, 0, cluster) for job in jobs}
        by_name = {job.job.name: job for job in jobs}
        for _ in range(cluster.num_gpus):
            without = [name for name in counts if not counts[name]]
            name = max(without or counts, key=lambda name: gains[name])
            if not gains[name] > 0:
                break
            counts[name] += 1
            gains[name] = self._gain(by_name[name], counts[name], cluster)
        return place_counts(counts, jobs, cluster)

    def _gain(self, job: SimulatedJob, num_gpus: int, cluster: Cluster) -> float:
        """Return how much one more GPU lowers the loss in the coming round."""
        fall = self._fall(job, num_gpus, cluster) if num_gpus else 0.0
        return self._fall(job, num_gpus + 1, cluster) - fall

    def _fall(self, job: SimulatedJob, num_gpus: int, cluster: Cluster) -> float:
        """Return how much the normalised loss falls in a round on so many GPUs."""
        steps, left = self._rates.steps(job), self._rates.steps_left(job)
        done = 1.0 - left / steps
        then = min(done + self._rates.on(job, num_gpus, cluster) * cluster.interval_s / steps, 1.0)
        return math.exp(-_DECAY * done) - math.exp(-_DECAY * then)
