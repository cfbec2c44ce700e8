"""Earliest deadline first, as ElasticFlow (ASPLOS 2023) compares itself with: nobody is refused.

The runs in its public artifact give each job as many GPUs as its batch can be split over, even where fewer
are faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.batch_splits import split_batch
from pollux_slurm.simulator.policies.packing import place_counts
from pollux_slurm.simulator.policies.user_rates import most_replicas


class EdfPolicy:
    """In the order of deadlines, each job has the largest power of two of GPUs that it can use."""

    resizes = True

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return split_batch(job.application, job.job.batch_size, job.num_gpus)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        left, counts = cluster.num_gpus, {}
        for job in sorted(jobs, key=lambda job: (_deadline_s(job), job.job.submitted_s)):
            most = min(left, most_replicas(job), job.application.most_gpus)
            counts[job.job.name] = 1 << most.bit_length() - 1 if most else 0
            left -= counts[job.job.name]
        return place_counts(counts, jobs, cluster)


def _deadline_s(job: SimulatedJob) -> float:
    return math.inf if job.job.finish_by_s is None else job.job.finish_by_s
