"""Where jobs stand: free room per node, what fits, putting jobs in and out: the search's mutable part.

Legend: n nodes, in the problem's order. Room is GPUs, CPUs and MB of memory, as columns of an `(n, 3)` array.

- A node that is drained, or on which more is held than it has, keeps its jobs and takes nothing new.
- A job over several nodes goes only where no other such job is (interference avoidance). Two that already
  share a node are left to it for as long as neither changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Allocation, NodeCapacity, ProblemJob
from pollux_slurm.policy.options import Option

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Placed:
    """An option with its place: (node index, GPUs) pairs."""

    option: Option
    gpus: tuple[tuple[int, int], ...]


class Cluster:
    """The nodes of a problem, the same throughout a search."""

    def __init__(self, nodes: Sequence[NodeCapacity], jobs: Sequence[ProblemJob]) -> None:
        self.names = [node.name for node in nodes]
        self.index = {name: position for position, name in enumerate(self.names)}
        self.capacity = np.array(
            [(node.num_gpus, node.num_cpus, node.memory_mb) for node in nodes], dtype=np.int64
        ).reshape(-1, 3)
        held = np.zeros_like(self.capacity)
        for job in jobs:
            for name, gpus in job.current.gpus_by_node:
                held[self.index[name]] += gpus * need(job)
        crowded = (held > self.capacity).any(axis=1)
        self.open = np.array([node.accepts_new for node in nodes], dtype=bool) & ~crowded
        self.capacity = np.maximum(self.capacity, held)

    def eligible(self, job: ProblemJob) -> BoolArray:
        """Return which nodes may take `job` anew, of shape `(n,)`."""
        if job.partition_nodes is None:
            return self.open
        inside = np.array([name in job.partition_nodes for name in self.names], dtype=bool)
        return np.asarray(self.open & inside, dtype=bool)

    def place_of(self, allocation: Allocation) -> tuple[tuple[int, int], ...]:
        return tuple((self.index[name], gpus) for name, gpus in allocation.gpus_by_node)

    def allocation_of(self, placed: Placed) -> Allocation:
        return Allocation.of({self.names[node]: gpus for node, gpus in placed.gpus})


def need(job: ProblemJob) -> IntArray:
    """Return what one GPU of a job takes of a node: 1 GPU, its CPUs, its memory."""
    return np.array([1, job.cpus_per_gpu, job.memory_per_gpu_mb], dtype=np.int64)


class State:
    """Every job's place and the room left. Starts from what the jobs hold."""

    def __init__(
        self, cluster: Cluster, jobs: Sequence[ProblemJob], options: Sequence[Sequence[Option]]
    ) -> None:
        self.cluster = cluster
        self.free = cluster.capacity.copy()
        self._need = [need(job) for job in jobs]
        self.idle_gpus = int(self.free[:, 0].sum())
        self._home = [cluster.place_of(job.current) for job in jobs]
        self._eligible: list[BoolArray] = []
        known: dict[frozenset[str] | None, BoolArray] = {}
        for job in jobs:
            if job.partition_nodes not in known:
                known[job.partition_nodes] = cluster.eligible(job)
            self._eligible.append(known[job.partition_nodes])
        # How many jobs over several nodes stand on each node: unchanged ones, and others.
        self._spanning = np.zeros((2, len(cluster.names)), dtype=np.int64)
        self.placed: list[Placed | None] = [None] * len(jobs)
        self.members: list[set[int]] = [set() for _ in cluster.names]
        for index, choices in enumerate(options):
            stay = next(option for option in choices if option.stays)
            self.put(index, Placed(stay, self._home[index]))

    def put(self, job: int, placed: Placed) -> None:
        """Give `job`, which has no place, this one. Whether it fits is the caller's to know."""
        self.placed[job] = placed
        self._count(job, placed, 1)

    def take(self, job: int) -> Placed:
        """Take `job` out and return where it was."""
        placed = self.placed[job]
        assert placed is not None
        self._count(job, placed, -1)
        self.placed[job] = None
        return placed

    def _count(self, job: int, placed: Placed, sign: int) -> None:
        spans = len(placed.gpus) > 1
        self.idle_gpus -= sign * placed.option.num_gpus
        for node, gpus in placed.gpus:
            self.free[node] -= sign * gpus * self._need[job]
            if spans:
                self._spanning[0 if placed.option.stays else 1, node] += sign
            if sign > 0:
                self.members[node].add(job)
            else:
                self.members[node].discard(job)

    def candidates(self, job: int, option: Option) -> BoolArray:
        """Return which nodes have room for one node's share of a new option, of shape `(n,)`."""
        gpus, cpus, memory = (option.per_node * self._need[job]).tolist()
        fits = self._eligible[job] & (self.free[:, 0] >= gpus)
        if cpus:
            fits &= self.free[:, 1] >= cpus
        if memory:
            fits &= self.free[:, 2] >= memory
        if option.num_nodes > 1:
            fits &= (self._spanning[0] == 0) & (self._spanning[1] == 0)
        return np.asarray(fits, dtype=bool)

    def find(self, job: int, option: Option) -> Placed | None:
        """Return a place for `option` of a job that was taken out, None where it does not fit.

        The fullest nodes that still have room are filled first, in the problem's order among equals.
        """
        if option.num_gpus == 0:
            return Placed(option, ())
        if option.stays:
            home = self._home[job]
            fits = all((self.free[node] >= gpus * self._need[job]).all() for node, gpus in home)
            if fits and len(home) > 1:
                fits = not any(self._spanning[1, node] for node, _ in home)
            return Placed(option, home) if fits else None
        nodes = np.flatnonzero(self.candidates(job, option))
        if len(nodes) < option.num_nodes:
            return None
        fullest = nodes[np.argsort(self.free[nodes, 0], kind="stable")[: option.num_nodes]]
        return Placed(option, tuple((int(node), option.per_node) for node in np.sort(fullest)))

    def room_for(self, job: int) -> tuple[int, int]:
        """Return the most free GPUs on one node that `job` may use, and their number on all such nodes."""
        free = np.maximum(self.free[:, 0], 0)[self._eligible[job]]
        return int(free.max(initial=0)), int(free.sum())

    def fit(self, job: int, option: Option, nodes: Sequence[int]) -> Placed | None:
        """Return `option` placed on exactly these nodes, None where it does not fit."""
        if option.stays:
            return self.find(job, option)
        if not self.candidates(job, option)[list(nodes)].all():
            return None
        return Placed(option, tuple((node, option.per_node) for node in sorted(nodes)))

    def spanning(self, node: int) -> tuple[int, int]:
        """Return how many jobs over several nodes stand on a node: unchanged ones, and others."""
        return int(self._spanning[0, node]), int(self._spanning[1, node])

    def home(self, job: int) -> tuple[tuple[int, int], ...]:
        """Return (node index, GPUs) of what a job holds now."""
        return self._home[job]

    def eligible(self, job: int) -> BoolArray:
        return self._eligible[job]

    def share_of(self, job: int, option: Option) -> IntArray:
        """Return what one node's share of `option` takes, of shape `(3,)`."""
        return option.per_node * self._need[job]
