"""Optimus (EuroSys 2018) with an oracle and manually tuned jobs, as in the Pollux artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.batch_splits import split_batch
from pollux_slurm.simulator.policies.packing import place_counts
from pollux_slurm.simulator.policies.user_rates import most_replicas, step_s


class OptimusPolicy:
    """One GPU for each job, then each further GPU to the job that it saves most time; the user's batch size.

    The oracle knows the true number of remaining steps and the true step times.
    """

    resizes = True

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return split_batch(job.application, job.job.batch_size, job.num_gpus)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        left = cluster.num_gpus
        counts: dict[str, int] = {}
        gains: dict[str, float] = {}
        by_name = {job.job.name: job for job in jobs}
        remaining = {job.job.name: _remaining_steps(job) for job in jobs}

        def gain(job: SimulatedJob) -> float:
            count = counts[job.job.name]
            if left < 1 or count + 1 > most_replicas(job):
                return 0.0
            saved_s = step_s(job, count, cluster) - step_s(job, count + 1, cluster)
            return saved_s * remaining[job.job.name]

        for job in jobs:
            counts[job.job.name] = min(1, left)
            left -= counts[job.job.name]
            gains[job.job.name] = gain(job) if counts[job.job.name] else 0.0
        while left > 0 and max(gains.values()) > 0:
            name = max(gains, key=lambda name: gains[name])
            counts[name] += 1
            gains[name] = gain(by_name[name])
            left -= 1

        return place_counts(counts, jobs, cluster)


def _remaining_steps(job: SimulatedJob) -> float:
    application, batch_size = job.application, job.job.batch_size
    last = application.num_epochs - 1
    if last <= job.epoch:
        return 1.0
    steps = application.iterations(batch_size, last) - application.iterations(batch_size, job.epoch)
    return steps * job.job.work
