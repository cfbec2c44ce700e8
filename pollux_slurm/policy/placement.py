"""Where jobs stand: free room per node, what fits, putting jobs in and out: the search's mutable part.

Legend: n nodes, in the problem's order. Room is GPUs, CPUs and MB of memory, as columns of an `(n, 3)` array.

- A node that is drained, or on which more is held than it has, keeps its jobs and takes nothing new.
- A job over several nodes goes only where no other such job is (interference avoidance). Two that already
  share a node are left to it for as long as neither changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Allocation, NodeCapacity, ProblemJob
from pollux_slurm.policy.menu import Menu
from pollux_slurm.policy.options import Option

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_ROOMY = 2**62


@dataclass(frozen=True, slots=True)
class Placed:
    """An option with its place: (node index, GPUs) pairs."""

    option: Option
    gpus: tuple[tuple[int, int], ...]


class Cluster:
    """The nodes of a problem, the same throughout a search. `kind` (n,) is each node's GPU type."""

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
                held[self.index[name]] += gpus * need(job)
        crowded = (held > self.capacity).any(axis=1)
        self.open = np.array([node.accepts_new for node in nodes], dtype=bool) & ~crowded
        self.capacity = np.maximum(self.capacity, held)
        # Whether CPUs or memory can run out before GPUs do, for the most demanding job.
        cpus = max((job.cpus_per_gpu for job in jobs), default=0)
        memory = max((job.memory_per_gpu_mb for job in jobs), default=0)
        demand = self.capacity[:, :1] * np.array([1, cpus, memory], dtype=np.int64)
        self.is_tight = bool((self.capacity < demand).any())

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
    """Every job's place, and what is left of nodes, limits and moves. Starts from what the jobs hold."""

    def __init__(self, cluster: Cluster, menu: Menu) -> None:
        self.cluster = cluster
        jobs = menu.everyone
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
        self._of_kind = [cluster.kind == kind for kind in range(len(menu.tables.kinds))]
        self._one_kind = len(self._of_kind) == 1
        # How many jobs over several nodes stand on each node: unchanged ones, and others.
        self._spanning = np.zeros((2, len(cluster.names)), dtype=np.int64)
        self._groups = (
            [np.flatnonzero(row).tolist() for row in menu.members] if menu.group_budget.size else []
        )
        self._left = menu.group_budget.tolist()
        self._is_running = [bool(job.current) for job in jobs]
        self._moves_left = len(jobs) + 1 if menu.max_moves is None else menu.max_moves
        self.placed: list[Placed | None] = [None] * len(jobs)
        self.members: list[set[int]] = [set() for _ in cluster.names]
        self._at_home: list[list[int]] = [[] for _ in cluster.names]
        for index, home in enumerate(self._home):
            for node, _ in home:
                self._at_home[node].append(index)
        for index in range(len(jobs)):
            self.put(index, Placed(menu.option(index, -1), self._home[index]))

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
        option = placed.option
        spans = len(placed.gpus) > 1
        self.idle_gpus -= sign * option.num_gpus
        if self._groups:
            for group in self._groups[job]:
                self._left[group] -= sign * option.num_gpus
        if self._is_running[job] and not option.stays:
            self._moves_left -= sign
        for node, gpus in placed.gpus:
            self.free[node] -= sign * gpus * self._need[job]
            if spans:
                self._spanning[0 if option.stays else 1, node] += sign
            if sign > 0:
                self.members[node].add(job)
            else:
                self.members[node].discard(job)

    def may_have(self, job: int, option: Option) -> bool:
        """Whether limits and the budget of moves leave `option` to a job that was taken out."""
        if self._is_running[job] and not option.stays and self._moves_left <= 0:
            return False
        return not self._groups or all(option.num_gpus <= self._left[group] for group in self._groups[job])

    @property
    def moves_left(self) -> int:
        return self._moves_left

    def limit_left(self, job: int) -> int | None:
        """Return how many GPUs more a job's limits leave it, None where it has none."""
        return min((self._left[group] for group in self._groups[job]), default=None) if self._groups else None

    def rivals(self, job: int, option: Option) -> list[int]:
        """Return the jobs that share a limit which `option` of a taken-out job would break."""
        if not self._groups:
            return []
        broken = {group for group in self._groups[job] if option.num_gpus > self._left[group]}
        return [
            other
            for other, groups in enumerate(self._groups)
            if other != job and self.placed[other] is not None and broken.intersection(groups)
        ]

    def candidates(self, job: int, option: Option) -> BoolArray:
        """Return which nodes have room for one node's share of a new option, of shape `(n,)`."""
        share = max(option.per_node, 1)
        fits = self._eligible[job] & (self.free[:, 0] >= share)
        if not self._one_kind:
            fits &= self._of_kind[option.kind]
        if self.cluster.is_tight:
            _, cpus, memory = self._need[job].tolist()
            if cpus:
                fits &= self.free[:, 1] >= share * cpus
            if memory:
                fits &= self.free[:, 2] >= share * memory
        if option.num_nodes > 1:
            fits &= (self._spanning[0] == 0) & (self._spanning[1] == 0)
        return np.asarray(fits, dtype=bool)

    def find(self, job: int, option: Option) -> Placed | None:
        """Return a place for `option` of a job that was taken out, None where it does not fit.

        The fullest nodes that still have room are filled first, in the problem's order among equals.
        """
        if option.num_gpus == 0:
            return Placed(option, ())
        if not self.may_have(job, option):
            return None
        if option.stays:
            home = self._home[job]
            fits = all((self.free[node] >= gpus * self._need[job]).all() for node, gpus in home)
            if fits and len(home) > 1:
                fits = not any(self._spanning[1, node] for node, _ in home)
            return Placed(option, home) if fits else None
        candidates = self.candidates(job, option)
        if option.num_nodes == 1:
            if not len(candidates):
                return None
            node = int(np.where(candidates, self.free[:, 0], _ROOMY).argmin())
            return Placed(option, ((node, option.per_node),)) if candidates[node] else None
        nodes = np.flatnonzero(candidates)
        if option.is_uneven:
            return self._spread(job, option, nodes)
        if len(nodes) < option.num_nodes:
            return None
        fullest = nodes[np.argsort(self.free[nodes, 0], kind="stable")[: option.num_nodes]]
        return Placed(option, tuple((int(node), option.per_node) for node in np.sort(fullest)))

    def _spread(self, job: int, option: Option, nodes: npt.NDArray[np.intp]) -> Placed | None:
        """Return K GPUs on the emptiest of these nodes, the rest on the fullest that has room for it."""
        need = self._need[job]
        room = (self.free[nodes][:, need > 0] // need[need > 0]).min(axis=1) if len(nodes) else nodes
        if len(nodes) < 2 or int(room.sum()) < option.num_gpus:
            return None
        room = np.minimum(room, option.num_gpus - 1)  # on two nodes at least
        order = np.argsort(-room, kind="stable").tolist()
        rest, found = option.num_gpus, []
        for position, index in enumerate(order):
            if room[index] >= rest:
                last = min((i for i in order[position:] if room[i] >= rest), key=lambda i: (room[i], i))
                found.append((int(nodes[last]), rest))
                return Placed(option, tuple(sorted(found)))
            found.append((int(nodes[index]), int(room[index])))
            rest -= int(room[index])
        return None

    def room_for(self, job: int) -> tuple[int, int]:
        """Return the most free GPUs on one node that `job` may use, and their number on all such nodes."""
        free = np.maximum(self.free[:, 0], 0)[self._eligible[job]]
        return int(free.max(initial=0)), int(free.sum())

    def fit(self, job: int, option: Option, nodes: Sequence[int]) -> Placed | None:
        """Return `option` placed on exactly these nodes, None where it does not fit."""
        if option.stays:
            return self.find(job, option)
        if not self.may_have(job, option) or not self.candidates(job, option)[list(nodes)].all():
            return None
        if option.is_uneven:
            return self._spread(job, option, np.array(sorted(nodes), dtype=np.intp))
        return Placed(option, tuple((node, option.per_node) for node in sorted(nodes)))

    def spanning(self, node: int) -> tuple[int, int]:
        """Return how many jobs over several nodes stand on a node: unchanged ones, and others."""
        return int(self._spanning[0, node]), int(self._spanning[1, node])

    def has_room(self, job: int, option: Option, gpus: Sequence[tuple[int, int]]) -> bool:
        """Whether a taken-out job may stand exactly there, limits and moves aside."""
        fits = self.candidates(job, option)
        return all(fits[node] and (self.free[node] >= count * self._need[job]).all() for node, count in gpus)

    def without_spanning(self) -> BoolArray:
        """Return which nodes hold no job over several nodes, of shape `(n,)`."""
        return np.asarray((self._spanning[0] == 0) & (self._spanning[1] == 0), dtype=bool)

    def home(self, job: int) -> tuple[tuple[int, int], ...]:
        """Return (node index, GPUs) of what a job holds now."""
        return self._home[job]

    def at_home(self, node: int) -> list[int]:
        """Return the jobs that hold GPUs of a node before the decision."""
        return self._at_home[node]

    def eligible(self, job: int) -> BoolArray:
        return self._eligible[job]

    def usable(self, job: int, kind: int) -> BoolArray:
        """Return which nodes of a GPU type a job may use, of shape `(n,)`."""
        return np.asarray(self._eligible[job] & self._of_kind[kind], dtype=bool)

    def share_of(self, job: int, option: Option) -> IntArray:
        """Return what one node's share of `option` takes, of shape `(3,)`."""
        return max(option.per_node, 1) * self._need[job]
