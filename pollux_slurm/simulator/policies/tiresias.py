"""Tiresias (NSDI 2019) with manually tuned jobs, as in the Pollux artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.batch_splits import split_batch
from pollux_slurm.simulator.policies.packing import FreeGpus

_DEMOTION_GPU_S = 57_600


class TiresiasPolicy:
    """Two queues by attained service; each first come, first served, and jobs that do not fit are skipped.

    Replicas and batch size are the user's. A job that keeps running keeps its allocation.
    """

    resizes = False

    def __init__(self) -> None:
        self._queues: tuple[list[str], list[str]] = ([], [])
        self._running: set[str] = set()
        self._attained_s: dict[str, float] = {}
        self._seen_at_s = 0.0

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return split_batch(job.application, job.job.batch_size, job.num_gpus)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        wanted = {job.job.name: job.job.num_replicas for job in jobs}
        self._update_queues(now_s, wanted)
        left = cluster.num_gpus
        self._running = set()
        order = [name for queue in self._queues for name in queue]
        for name in order:
            if wanted[name] <= left:
                self._running.add(name)
                left -= wanted[name]
        kept = {
            job.job.name: job.allocation for job in jobs if job.job.name in self._running and job.allocation
        }
        free = FreeGpus(cluster, kept.values())
        for name in order:
            if name in self._running and name not in kept:
                kept[name] = free.take(wanted[name])
        return kept

    def _update_queues(self, now_s: float, wanted: Mapping[str, int]) -> None:
        first, second = ([name for name in queue if name in wanted] for queue in self._queues)
        for name, num_gpus in wanted.items():
            if name not in self._attained_s:
                self._attained_s[name] = 0.0
                first.append(name)
            elif name in self._running:
                self._attained_s[name] += now_s - self._seen_at_s
                if name in first and self._attained_s[name] * num_gpus >= _DEMOTION_GPU_S:
                    first.remove(name)
                    second.append(name)
        self._queues = (first, second)
        self._seen_at_s = now_s
