"""Placement of the baselines: free GPUs, the emptiest node first."""

from __future__ import annotations

from collections.abc import Iterable

from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode


class FreeGpus:
    """The free GPUs of each node that has any, in the order of the nodes."""

    def __init__(self, cluster: Cluster, owned: Iterable[GpusByNode]) -> None:
        free = dict(enumerate(cluster.node_gpus))
        for allocation in owned:
            for node, gpus in allocation:
                free[node] -= gpus
        self._free = {node: gpus for node, gpus in free.items() if gpus > 0}

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
