"""Placement of the baselines: free GPUs, the emptiest node first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob


class FreeGpus:
    """The free GPUs of each node that has any, in the order of the nodes."""

    def __init__(self, cluster: Cluster, owned: Iterable[GpusByNode]) -> None:
        free = dict(enumerate(cluster.node_gpus))
        for allocation in owned:
            for node, gpus in allocation:
                free[node] -= gpus
        self._free = {node: gpus for node, gpus in free.items() if gpus > 0}

    @property
    def num_free(self) -> int:
        return sum(self._free.values())

    def take(self, num_gpus: int) -> GpusByNode:
        """Take GPUs from the emptiest node, then from the next. There must be as many."""
        allocation = []
        while num_gpus > 0:
            node = max(self._free, key=lambda node: self._free[node])
            taken = min(self._free[node], num_gpus)
            self._free[node] -= taken
            num_gpus -= taken
            allocation.append((node, taken))
        return tuple(allocation)

    def keep(self, allocation: GpusByNode) -> bool:
        """Take these very GPUs, if all of them are free; return whether they were."""
        if not allocation or any(self._free.get(node, 0) < gpus for node, gpus in allocation):
            return False
        for node, gpus in allocation:
            self._free[node] -= gpus
        return True


def place_counts(
    counts: Mapping[str, int], jobs: Sequence[SimulatedJob], cluster: Cluster
) -> dict[str, GpusByNode]:
    """Place each job's number of GPUs: one that has as many keeps them, others are placed by size."""
    kept = {job.job.name: job.allocation for job in jobs if job.num_gpus == counts[job.job.name] > 0}
    free = FreeGpus(cluster, kept.values())
    for name in sorted(counts, key=lambda name: counts[name]):
        if counts[name] and name not in kept:
            kept[name] = free.take(counts[name])
    return kept
