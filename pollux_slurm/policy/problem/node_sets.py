"""The nodes of a problem as the searches see them, and sets of nodes.

Legend: n nodes, in the problem's order. A set of nodes is an integer whose bit i stands for node i, so that
what fits where is found by a few operations, however many nodes there are.

A node that is drained, or on which more is held than it has, keeps its jobs and takes nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import gt

import numpy as np

from pollux_slurm.model import Allocation, ProblemJob
from pollux_slurm.policy.problem.node_facts import NodeFacts, NodeSet, at_least, members_of, node_set

__all__ = ["Cluster", "NodeSet", "members_of", "need", "node_set"]


class Cluster:
    """The nodes of a problem, the same throughout a search. `kind` (n,) is each node's GPU type.

    `capacity` (n, 3) is each node's GPUs, CPUs and MB of memory, or what `jobs` hold where that is more.
    """

    def __init__(self, facts: NodeFacts, jobs: Sequence[ProblemJob]) -> None:
        self.facts = facts
        self.names, self.index, self.kind, self.of_kind = facts.names, facts.index, facts.kind, facts.of_kind
        self.open, self.capacity, self.max_gpus_per_node = (
            facts.accepting,
            facts.capacity,
            facts.max_gpus_per_node,
        )
        # The nodes of at least k GPUs, for k from 0 to one more than any has.
        self.at_least = facts.at_least
        # Whether CPUs or memory can run out before GPUs do, for the most demanding job.
        cpus = max((job.cpus_per_gpu for job in jobs), default=0)
        memory = max((job.memory_per_gpu_mb for job in jobs), default=0)
        held: dict[int, list[int]] = {}
        for job in jobs:
            for name, gpus in job.current.gpus_by_node:
                on_node = held.setdefault(self.index[name], [0, 0, 0])
                for part, each in enumerate(need(job)):
                    on_node[part] += gpus * each
        rows = facts.rows
        crowded = [node for node, parts in held.items() if any(map(gt, parts, rows[node]))]
        if crowded:
            self.open &= ~node_set(crowded)
            self.capacity = facts.capacity.copy()
            for node in crowded:
                self.capacity[node] = np.maximum(self.capacity[node], held[node])
            self.max_gpus_per_node, self.at_least = int(self.capacity[:, 0].max()), at_least(self.capacity)
            demand = self.capacity[:, :1] * np.array([1, cpus, memory], dtype=np.int64)
            self.is_tight = bool((self.capacity < demand).any())
        else:
            self.is_tight = cpus > facts.for_each[0] or memory > facts.for_each[1]

    def eligible(self, job: ProblemJob) -> NodeSet:
        """Return which nodes may take `job` anew."""
        if job.partition_nodes is None:
            return self.open
        return self.open & node_set(self.index[name] for name in job.partition_nodes if name in self.index)

    def place_of(self, allocation: Allocation) -> tuple[tuple[int, int], ...]:
        index = self.index
        return tuple(sorted([(index[name], gpus) for name, gpus in allocation.gpus_by_node]))

    def allocation_of(self, gpus_by_node: Iterable[tuple[int, int]]) -> Allocation:
        return Allocation.of({self.names[node]: gpus for node, gpus in gpus_by_node})


def need(job: ProblemJob) -> tuple[int, int, int]:
    """Return what one GPU of a job takes of a node: 1 GPU, its CPUs, its MB of memory."""
    return (1, job.cpus_per_gpu, job.memory_per_gpu_mb)
