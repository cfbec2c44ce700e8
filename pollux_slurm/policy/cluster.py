"""The nodes of a problem as the searches see them, and sets of nodes.

Legend: n nodes, in the problem's order. A set of nodes is an integer whose bit i stands for node i, so that
what fits where is found by a few operations, however many nodes there are.

A node that is drained, or on which more is held than it has, keeps its jobs and takes nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Allocation, NodeCapacity, ProblemJob

IntArray = npt.NDArray[np.int64]
NodeSet = int


def node_set(nodes: Iterable[int]) -> NodeSet:
    """Return the set of these node indices."""
    found = 0
    for node in nodes:
        found |= 1 << node
    return found


def members_of(nodes: NodeSet) -> Iterator[int]:
    """Yield the node indices in a set, in order."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest


class Cluster:
    """The nodes of a problem, the same throughout a search. `kind` (n,) is each node's GPU type.

    `capacity` (n, 3) is each node's GPUs, CPUs and MB of memory, or what is held of them where that is more.
    """

    def __init__(
        self, nodes: Sequence[NodeCapacity], jobs: Sequence[ProblemJob], kind_of_node: Mapping[str, int]
    ) -> None:
        self.names = [node.name for node in nodes]
        self.index = {name: position for position, name in enumerate(self.names)}
        self.kind = np.array([kind_of_node[name] for name in self.names], dtype=np.int64)
        self.capacity = np.array(
            [(node.num_gpus, node.num_cpus, node.memory_mb) for node in nodes], dtype=np.int64
        ).reshape(-1, 3)
        held = np.zeros_like(self.capacity)
        for job in jobs:
            for name, gpus in job.current.gpus_by_node:
                held[self.index[name]] += gpus * np.array(need(job), dtype=np.int64)
        crowded = (held > self.capacity).any(axis=1)
        accepts = np.array([node.accepts_new for node in nodes], dtype=bool) & ~crowded
        self.open = node_set(np.flatnonzero(accepts).tolist())
        self.capacity = np.maximum(self.capacity, held)
        self.widest = int(self.capacity[:, 0].max(initial=0))
        # The nodes of at least k GPUs, for k from 0 to one more than any has.
        self.at_least = [
            node_set(np.flatnonzero(self.capacity[:, 0] >= k).tolist()) for k in range(self.widest + 2)
        ]
        num_kinds = max(max(kind_of_node.values(), default=0), int(self.kind.max(initial=0))) + 1
        self.of_kind = [node_set(np.flatnonzero(self.kind == kind).tolist()) for kind in range(num_kinds)]
        # Whether CPUs or memory can run out before GPUs do, for the most demanding job.
        cpus = max((job.cpus_per_gpu for job in jobs), default=0)
        memory = max((job.memory_per_gpu_mb for job in jobs), default=0)
        demand = self.capacity[:, :1] * np.array([1, cpus, memory], dtype=np.int64)
        self.is_tight = bool((self.capacity < demand).any())

    def eligible(self, job: ProblemJob) -> NodeSet:
        """Return which nodes may take `job` anew."""
        if job.partition_nodes is None:
            return self.open
        return self.open & node_set(self.index[name] for name in job.partition_nodes if name in self.index)

    def place_of(self, allocation: Allocation) -> tuple[tuple[int, int], ...]:
        return tuple(sorted((self.index[name], gpus) for name, gpus in allocation.gpus_by_node))

    def allocation_of(self, gpus_by_node: Iterable[tuple[int, int]]) -> Allocation:
        return Allocation.of({self.names[node]: gpus for node, gpus in gpus_by_node})


def need(job: ProblemJob) -> tuple[int, int, int]:
    """Return what one GPU of a job takes of a node: 1 GPU, its CPUs, its MB of memory."""
    return (1, job.cpus_per_gpu, job.memory_per_gpu_mb)
