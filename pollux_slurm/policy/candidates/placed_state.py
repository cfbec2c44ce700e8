"""Placements of jobs on nodes: what they leave of each node, of GPU limits and of moves. The search's state.

A job over several nodes goes only where no other such job is (interference avoidance). Two that already
share a node are left to it for as long as neither changes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pollux_slurm.policy.candidates.candidate import Candidate
from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.problem.node_sets import Cluster, NodeSet, members_of, need, node_set


class Placement(NamedTuple):
    """A candidate with its place: (node index, GPUs) pairs, in the order of the nodes."""

    candidate: Candidate
    gpus: tuple[tuple[int, int], ...]


class State:
    """The placement of every job, and what nodes, limits and the budget of moves leave.

    `free` is the number of free GPUs of each node; `at_least` has the nodes with at least k of them, for k
    from 0 to one more than any node has. `current` are (node index, GPUs) of each job's allocation before the
    decision, `current_owners` the jobs that have GPUs of each node then, and `eligible` the nodes on which a
    job may get a new one. `place_search` finds places.
    """

    def __init__(self, cluster: Cluster, candidates: Candidates) -> None:
        self.cluster = cluster
        jobs = candidates.all_jobs
        self.free: list[int] = cluster.capacity[:, 0].tolist()
        self.idle_gpus = sum(self.free)
        self.at_least, self._widest = list(cluster.at_least), cluster.max_gpus_per_node
        self._need = [need(job) for job in jobs]
        # CPUs and memory, only where they can run out before the GPUs do.
        self._free_cpus, self._free_mb = cluster.capacity[:, 1].tolist(), cluster.capacity[:, 2].tolist()
        self.current = [cluster.place_of(job.current) for job in jobs]
        known: dict[frozenset[str] | None, NodeSet] = {None: cluster.open}
        for job in jobs:
            if job.partition_nodes not in known:
                known[job.partition_nodes] = cluster.eligible(job)
        self._current_node_sets: dict[int, list[NodeSet]] = {}
        self.eligible = [known[job.partition_nodes] for job in jobs]
        # The nodes of multi-node jobs: of those that stay as they are, and of others; and how many
        # more than one, where there are more.
        self._spanning = [0, 0]
        self._more_spanning: dict[tuple[int, int], int] = {}
        self._groups = (
            [np.flatnonzero(row).tolist() for row in candidates.members]
            if candidates.group_budget.size
            else []
        )
        self._left = candidates.group_budget.tolist()
        self.is_running = [bool(job.current) for job in jobs]
        self.moves_left = len(jobs) + 1 if candidates.max_moves is None else candidates.max_moves
        self._has_shared = bool(self._groups) or candidates.max_moves is not None or cluster.is_tight
        self._num_jobs = candidates.num_jobs
        self.in_place = candidates.in_place
        self.placed: list[Placement | None] = [None] * len(jobs)
        self.members: list[set[int]] = [set() for _ in cluster.names]
        self.current_owners: list[list[int]] = [[] for _ in cluster.names]
        for index, current in enumerate(self.current):
            for node, _ in current:
                self.current_owners[node].append(index)
        for index in range(len(jobs)):
            self.put(index, Placement(candidates.candidate(index, -1), self.current[index]))

    def copy(self) -> State:
        """Return a state with the same places, that changes by itself."""
        other = State.__new__(State)  # copy.copy makes attribute access slower
        other.cluster, other._widest, other._has_shared = self.cluster, self._widest, self._has_shared
        other._num_jobs, other.in_place = self._num_jobs, self.in_place
        other._need, other.current, other._current_node_sets = (
            self._need,
            self.current,
            self._current_node_sets,
        )
        other.eligible, other._groups, other.is_running = self.eligible, self._groups, self.is_running
        other.current_owners = self.current_owners
        other.free, other.idle_gpus, other.at_least = self.free.copy(), self.idle_gpus, self.at_least.copy()
        other._free_cpus, other._free_mb = self._free_cpus.copy(), self._free_mb.copy()
        other._spanning, other._more_spanning = self._spanning.copy(), self._more_spanning.copy()
        other._left = self._left.copy()
        other.moves_left, other.placed = self.moves_left, self.placed.copy()
        other.members = [jobs.copy() for jobs in self.members]
        return other

    def at(self, job: int) -> Placement:
        """Return the placement of a job that is placed."""
        placed = self.placed[job]
        assert placed is not None
        return placed

    def placed_jobs(self) -> list[Placement]:
        """Return the placements of all jobs of the objective; the caller knows that all are placed."""
        return [placed for placed in self.placed[: self._num_jobs] if placed is not None]

    def value(self) -> float:
        """Return what the options of all jobs of the objective add to the sum."""
        return sum([placed.candidate.value for placed in self.placed_jobs()])

    def put(self, job: int, placed: Placement) -> None:
        """Place a job that is not placed. The caller knows that it fits."""
        self.placed[job] = placed
        candidate, room, free = placed.candidate, self.at_least, self.free
        self.idle_gpus -= candidate.num_gpus
        whole = partly = 0
        widest, members = self._widest, self.members
        for node, gpus in placed.gpus:
            before = free[node]
            free[node] = after = before - gpus
            bit = 1 << node
            if gpus == widest:  # all of the largest nodes at once, below
                whole |= bit
            else:
                partly |= bit
                for k in range(after + 1, before + 1):
                    room[k] ^= bit
            members[node].add(job)
        if whole:
            for k in range(1, widest + 1):
                room[k] ^= whole
        if len(placed.gpus) > 1:
            which, nodes = 0 if candidate.stays else 1, whole | partly
            if self._spanning[which] & nodes:
                self._count_more(which, nodes, 1)
            self._spanning[which] |= nodes
        if self._has_shared:
            self._count_shared(job, placed, 1)

    def take(self, job: int) -> Placement:
        """Remove a job and return its placement."""
        placed = self.placed[job]
        assert placed is not None
        self.placed[job] = None
        candidate, room, free = placed.candidate, self.at_least, self.free
        self.idle_gpus += candidate.num_gpus
        whole = partly = 0
        widest, members = self._widest, self.members
        for node, gpus in placed.gpus:
            before = free[node]
            free[node] = after = before + gpus
            bit = 1 << node
            if gpus == widest:
                whole |= bit
            else:
                partly |= bit
                for k in range(before + 1, after + 1):
                    room[k] ^= bit
            members[node].discard(job)
        if whole:
            for k in range(1, widest + 1):
                room[k] ^= whole
        if len(placed.gpus) > 1:
            which, nodes = 0 if candidate.stays else 1, whole | partly
            self._spanning[which] ^= self._count_more(which, nodes, -1) if self._more_spanning else nodes
        if self._has_shared:
            self._count_shared(job, placed, -1)
        return placed

    def _count_shared(self, job: int, placed: Placement, sign: int) -> None:
        """Count a place in or out of limits, moves, CPUs and memory."""
        if self._groups:
            for group in self._groups[job]:
                self._left[group] -= sign * placed.candidate.num_gpus
        if self.is_running[job] and not placed.candidate.stays:
            self.moves_left -= sign
        if self.cluster.is_tight:
            _, cpus, memory_mb = self._need[job]
            for node, gpus in placed.gpus:
                self._free_cpus[node] -= sign * gpus * cpus
                self._free_mb[node] -= sign * gpus * memory_mb

    def _count_more(self, which: int, nodes: NodeSet, sign: int) -> NodeSet:
        """Count a multi-node job in or out on nodes with several; return the nodes where it was alone."""
        more, alone = self._more_spanning, nodes
        for node in members_of(nodes & self._spanning[which]):
            count = more.get((which, node), 0)
            if sign > 0:
                more[which, node] = count + 1
            elif count:
                alone ^= 1 << node
                more[which, node] = count - 1
                if count == 1:
                    del more[which, node]
        return alone

    def _num_spanning(self, which: int, node: int) -> int:
        """Return how many multi-node jobs that stay (0), or that do not (1), use a node."""
        return (self._spanning[which] >> node & 1) + self._more_spanning.get((which, node), 0)

    def may_have(self, job: int, candidate: Candidate) -> bool:
        """Whether limits and the budget of moves leave `candidate` to a job that was taken out."""
        if self.moves_left <= 0 and self.is_running[job] and not candidate.stays:
            return False
        return not self._groups or all(candidate.num_gpus <= self._left[group] for group in self._groups[job])

    def limit_left(self, job: int) -> int | None:
        """Return how many GPUs more a job's limits leave it, None where it has none."""
        return min((self._left[group] for group in self._groups[job]), default=None) if self._groups else None

    def room(self, job: int, gpus: int) -> NodeSet:
        """Return the nodes with room for so many GPUs of a job, whether or not it may use them."""
        if gpus > self.cluster.max_gpus_per_node:
            return 0
        found = self.at_least[gpus]
        if self.cluster.is_tight:
            _, cpus, memory_mb = self._need[job]
            cpus, memory_mb = cpus * gpus, memory_mb * gpus
            found = node_set(
                node
                for node in members_of(found & self.eligible[job])
                if (self._free_cpus[node] >= cpus or not cpus)
                and (self._free_mb[node] >= memory_mb or not memory_mb)
            )
        return found

    def nodes_with_room(self, job: int, candidate: Candidate) -> NodeSet:
        """Return which nodes have room for one node's share of a new candidate."""
        cluster, gpus = self.cluster, candidate.per_node or 1
        # What `room` returns, in the usual case.
        is_usual = not cluster.is_tight and gpus <= cluster.max_gpus_per_node
        room = self.at_least[gpus] if is_usual else self.room(job, gpus)
        found = self.eligible[job] & room & cluster.of_kind[candidate.kind]
        return found & ~(self._spanning[0] | self._spanning[1]) if candidate.num_nodes > 1 else found

    def fits_current(self, job: int) -> bool:
        """Whether a job that was taken out may have its current allocation again."""
        current, free = self.current[job], self.free
        others = self._spanning[1] if len(current) > 1 else 0
        for node, gpus in current:
            if free[node] < gpus or others >> node & 1:
                return False
        if self.cluster.is_tight:
            _, cpus, memory_mb = self._need[job]
            for node, gpus in current:
                if self._free_cpus[node] < cpus * gpus or self._free_mb[node] < memory_mb * gpus:
                    return False
        return True

    def num_with(self, nodes: NodeSet) -> list[int]:
        """Return how many of these nodes have at least k free GPUs, k from 0 to one more than any has."""
        return [(nodes & room).bit_count() for room in self.at_least]

    def alike(self, nodes: NodeSet) -> list[NodeSet]:
        """Return the parts of a set of nodes that have the same free, and jobs over several nodes on them."""
        found: dict[tuple[int, ...], NodeSet] = {}
        spanning = self._spanning[0] | self._spanning[1]
        plain = not self.cluster.is_tight and not spanning & nodes
        if plain and not all(nodes & ~of_kind for of_kind in self.cluster.of_kind):  # of one GPU type
            parts = []
            for k in range(1, len(self.at_least)):
                if fuller := nodes & ~self.at_least[k]:
                    parts.append(fuller)
                    nodes &= self.at_least[k]
            return parts
        for node in members_of(nodes):
            key = (
                self.free[node],
                self._free_cpus[node] if self.cluster.is_tight else 0,
                self._free_mb[node] if self.cluster.is_tight else 0,
                self._num_spanning(0, node),
                self._num_spanning(1, node),
                int(self.cluster.kind[node]),
            )
            found[key] = found.get(key, 0) | 1 << node
        return [found[key] for key in sorted(found)]

    def without_spanning(self) -> NodeSet:
        """Return the nodes without a multi-node job."""
        every = self.at_least[0]
        return every & ~(self._spanning[0] | self._spanning[1])

    def current_node_sets(self, job: int) -> list[NodeSet]:
        """Return the nodes of a job's current allocation, grouped by the GPUs and wings on each."""
        if job not in self._current_node_sets:
            found: dict[tuple[object, ...], NodeSet] = {}
            wings = {} if self.in_place is None else self.in_place.wings_by_node(job)
            for node, gpus in self.current[job]:
                found[gpus, wings.get(node)] = found.get((gpus, wings.get(node)), 0) | 1 << node
            self._current_node_sets[job] = list(found.values())
        return self._current_node_sets[job]

    def usable(self, job: int, kind: int) -> NodeSet:
        """Return the nodes of a GPU type on which a job may get a new allocation."""
        return self.eligible[job] & self.cluster.of_kind[kind]
