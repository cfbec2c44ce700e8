"""Placement of the baselines: whatever is free, the emptiest node first."""

from __future__ import annotations

from collections.abc import Iterable

from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import Pieces


class FreeGpus:
    """The free GPUs of each node that has any, in the order of the nodes."""

    def __init__(self, cluster: Cluster, held: Iterable[Pieces]) -> None:
        free = dict(enumerate(cluster.node_gpus))
        for pieces in held:
            for node, gpus in pieces:
                free[node] -= gpus
        self._free = {node: gpus for node, gpus in free.items() if gpus > 0}

    def take(self, num_gpus: int) -> Pieces:
        """Take GPUs from the emptiest node, then from the next. There must be as many."""
        pieces = []
        while num_gpus > 0:
            node = max(self._free, key=lambda node: self._free[node])
            taken = min(self._free[node], num_gpus)
            self._free[node] -= taken
            num_gpus -= taken
            pieces.append((node, taken))
        return tuple(pieces)
