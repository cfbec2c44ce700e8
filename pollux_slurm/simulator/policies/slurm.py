"""Plain Slurm as a baseline: first come, first served with backfill, each job at its user's fixed size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pollux_slurm.errors import SimulationError
from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.engine.backfill import Running, Waiting, backfill, pack_pool, pool_sizes
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.batch_splits import user_batch, user_training_time_s


class SlurmPolicy:
    """Conservative backfill with users' time limits, which are `estimate_factor` times what a job takes.

    Running jobs are never moved. A job that lost its node waits in the order of submission.
    """

    resizes = False

    def __init__(self, *, estimate_factor: float = 2.0) -> None:
        self._factor = estimate_factor
        self._limits_s: dict[str, float] = {}
        self._started_s: dict[str, float] = {}

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return user_batch(job.job, job.application, job.num_gpus)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        types = cluster.node_types
        free = list(cluster.node_gpus)
        running, waiting = [], {}
        for job in sorted(jobs, key=lambda job: job.job.submitted_s):
            name = job.job.name
            limit_s = self._limit_s(job, cluster)
            if not job.allocation:
                waiting[name] = Waiting(num_gpus=job.job.num_replicas, limit_s=limit_s)
                continue
            until_s = self._started_s[name] + limit_s
            running.append(Running(pool=types[job.allocation[0][0]], num_gpus=job.num_gpus, until_s=until_s))
            for node, gpus in job.allocation:
                free[node] -= gpus
        given = {job.job.name: job.allocation for job in jobs if job.allocation}
        pools = pool_sizes(free, types, cluster.fastest_types)
        for name, kind in backfill(now_s, pools, running, waiting).pools.items():
            given[name] = pack_pool(waiting[name].num_gpus, free, types, kind)
            self._started_s[name] = now_s
            for node, gpus in given[name]:
                free[node] -= gpus
        return given

    def _limit_s(self, job: SimulatedJob, cluster: Cluster) -> float:
        name = job.job.name
        if name not in self._limits_s:
            if job.job.num_replicas > cluster.most_gpus:
                raise SimulationError(
                    f"job {name} asks for {job.job.num_replicas} GPUs, but the cluster has at most "
                    f"{cluster.most_gpus} of one type"
                )
            self._limits_s[name] = self._factor * user_training_time_s(
                job.job, job.application, cluster.gpus_per_node
            )
        return self._limits_s[name]
