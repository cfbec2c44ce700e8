"""The nodes of a problem as the searches use them, and sets of nodes.

Legend: n nodes, in the problem's order. A set of nodes is an integer whose bit i stands for node i: what fits
where then takes a few operations on integers, however many nodes there are.

A drained or overcommitted node (its jobs have more than it has) keeps its jobs and takes no new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import gt

import numpy as np

from pollux_slurm.model import Allocation, ProblemJob
from pollux_slurm.policy.problem.node_facts import NodeFacts, NodeSet, at_least, members_of, node_set

__all__ = ["Cluster", "NodeSet", "members_of", "need", "node_set"]


class Cluster:
    """The nodes of a problem, constant during a search. `kind` (n,) is each node's GPU type.

    `open` are the nodes that take new jobs. `capacity` (n, 3) is each node's GPUs, CPUs and MB of memory, or
    what `jobs` have there where that is more. `at_least[k]` are the nodes with k GPUs or more. `is_tight` is
    True where CPUs or memory can run out before GPUs do, for the most demanding job.
    """

    def __init__(self, facts: NodeFacts, jobs: Sequence[ProblemJob]) -> None:
        self.facts = facts
        self.names, self.index, self.kind, self.of_kind = facts.names, facts.index, facts.kind, facts.of_kind
        self.open, self.capacity, self.max_gpus_per_node = (
            facts.accepting,
            facts.capacity,
            facts.max_gpus_per_node,
        )
        self.at_least = facts.at_least
        cpus = max((job.cpus_per_gpu for job in jobs), default=0)
        memory = max((job.memory_per_gpu_mb for job in jobs), default=0)
        used: dict[int, list[int]] = {}
        for job in jobs:
            for name, gpus in job.current.gpus_by_node:
                on_node = used.setdefault(self.index[name], [0, 0, 0])
                for part, each in enumerate(need(job)):
                    on_node[part] += gpus * each
        rows = facts.rows
        overcommitted = [node for node, parts in used.items() if any(map(gt, parts, rows[node]))]
        if overcommitted:
            self.open &= ~node_set(overcommitted)
            self.capacity = facts.capacity.copy()
            for node in overcommitted:
                self.capacity[node] = np.maximum(self.capacity[node], used[node])
            self.max_gpus_per_node, self.at_least = int(self.capacity[:, 0].max()), at_least(self.capacity)
            demand = self.capacity[:, :1] * np.array([1, cpus, memory], dtype=np.int64)
            self.is_tight = bool((self.capacity < demand).any())
        else:
            self.is_tight = cpus > facts.least_per_gpu[0] or memory > facts.least_per_gpu[1]

    def eligible(self, job: ProblemJob) -> NodeSet:
        """Return the nodes on which a new allocation of `job` may be."""
        if job.partition_nodes is None:
            return self.open
        return self.open & node_set(self.index[name] for name in job.partition_nodes if name in self.index)

    def place_of(self, allocation: Allocation) -> tuple[tuple[int, int], ...]:
        index = self.index
        return tuple(sorted([(index[name], gpus) for name, gpus in allocation.gpus_by_node]))

    def allocation_of(self, gpus_by_node: Iterable[tuple[int, int]]) -> Allocation:
        return Allocation.of({self.names[node]: gpus for node, gpus in gpus_by_node})


def need(job: ProblemJob) -> tuple[int, int, int]:
    """Return what each GPU of a job takes of its node: 1 GPU, its CPUs, its MB of memory."""
    return (1, job.cpus_per_gpu, job.memory_per_gpu_mb)
