"""Placements of jobs on nodes, and the free GPUs of each node: the search's mutable state.

A job over several nodes goes only where no other such job is (interference avoidance). Two that already
share a node are left to it for as long as neither changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pollux_slurm.policy.candidates.candidate import Candidate
from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.in_place_moves import Wing
from pollux_slurm.policy.problem.node_sets import Cluster, NodeSet, members_of, need, node_set


class Placement(NamedTuple):
    """A candidate with its place: (node index, GPUs) pairs, in the order of the nodes."""

    candidate: Candidate
    gpus: tuple[tuple[int, int], ...]


class State:
    """The placement of every job, and what nodes, limits and the budget of moves leave.

    `free` is the number of free GPUs of each node.
    """

    def __init__(self, cluster: Cluster, candidates: Candidates) -> None:
        self.cluster = cluster
        jobs = candidates.all_jobs
        self.free: list[int] = cluster.capacity[:, 0].tolist()
        self.idle_gpus = sum(self.free)
        # The nodes with at least k free GPUs, for k from 0 to one more than any node has.
        self._room, self._widest = list(cluster.at_least), cluster.max_gpus_per_node
        self._need = [need(job) for job in jobs]
        # CPUs and memory, only where they can run out before the GPUs do.
        self._free_cpus, self._free_mb = cluster.capacity[:, 1].tolist(), cluster.capacity[:, 2].tolist()
        self._current = [cluster.place_of(job.current) for job in jobs]
        known: dict[frozenset[str] | None, NodeSet] = {None: cluster.open}
        for job in jobs:
            if job.partition_nodes not in known:
                known[job.partition_nodes] = cluster.eligible(job)
        self._current_node_sets: dict[int, list[NodeSet]] = {}
        self._eligible = [known[job.partition_nodes] for job in jobs]
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
        self._is_running = [bool(job.current) for job in jobs]
        self._moves_left = len(jobs) + 1 if candidates.max_moves is None else candidates.max_moves
        self._has_shared = bool(self._groups) or candidates.max_moves is not None or cluster.is_tight
        self._num_jobs = candidates.num_jobs
        self._in_place = candidates.in_place
        self.placed: list[Placement | None] = [None] * len(jobs)
        self.members: list[set[int]] = [set() for _ in cluster.names]
        self._current_owners: list[list[int]] = [[] for _ in cluster.names]
        for index, current in enumerate(self._current):
            for node, _ in current:
                self._current_owners[node].append(index)
        for index in range(len(jobs)):
            self.put(index, Placement(candidates.candidate(index, -1), self._current[index]))

    def copy(self) -> State:
        """Return a state with the same places, that changes by itself."""
        other = State.__new__(State)  # copy.copy makes attribute access slower
        other.cluster, other._widest, other._has_shared = self.cluster, self._widest, self._has_shared
        other._num_jobs, other._in_place = self._num_jobs, self._in_place
        other._need, other._current, other._current_node_sets = (
            self._need,
            self._current,
            self._current_node_sets,
        )
        other._eligible, other._groups, other._is_running = self._eligible, self._groups, self._is_running
        other._current_owners = self._current_owners
        other.free, other.idle_gpus, other._room = self.free.copy(), self.idle_gpus, self._room.copy()
        other._free_cpus, other._free_mb = self._free_cpus.copy(), self._free_mb.copy()
        other._spanning, other._more_spanning = self._spanning.copy(), self._more_spanning.copy()
        other._left = self._left.copy()
        other._moves_left, other.placed = self._moves_left, self.placed.copy()
        other.members = [jobs.copy() for jobs in self.members]
        return other

    def at(self, job: int) -> Placement:
        """Return the placement of a job that is placed."""
        placed = self.placed[job]
        assert placed is not None
        return placed

    def value(self) -> float:
        """Return what the options of all jobs of the objective add to the sum."""
        return sum(self.at(job).candidate.value for job in range(self._num_jobs))

    def put(self, job: int, placed: Placement) -> None:
        """Place a job that is not placed. The caller knows that it fits."""
        self.placed[job] = placed
        candidate, room, free = placed.candidate, self._room, self.free
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
        candidate, room, free = placed.candidate, self._room, self.free
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
        if self._is_running[job] and not placed.candidate.stays:
            self._moves_left -= sign
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
        if self._moves_left <= 0 and self._is_running[job] and not candidate.stays:
            return False
        return not self._groups or all(candidate.num_gpus <= self._left[group] for group in self._groups[job])

    @property
    def moves_left(self) -> int:
        return self._moves_left

    def limit_left(self, job: int) -> int | None:
        """Return how many GPUs more a job's limits leave it, None where it has none."""
        return min((self._left[group] for group in self._groups[job]), default=None) if self._groups else None

    def room(self, job: int, gpus: int) -> NodeSet:
        """Return the nodes with room for so many GPUs of a job, whether or not it may use them."""
        if gpus > self.cluster.max_gpus_per_node:
            return 0
        found = self._room[gpus]
        if self.cluster.is_tight:
            _, cpus, memory_mb = self._need[job]
            cpus, memory_mb = cpus * gpus, memory_mb * gpus
            found = node_set(
                node
                for node in members_of(found & self._eligible[job])
                if (self._free_cpus[node] >= cpus or not cpus)
                and (self._free_mb[node] >= memory_mb or not memory_mb)
            )
        return found

    def nodes_with_room(self, job: int, candidate: Candidate) -> NodeSet:
        """Return which nodes have room for one node's share of a new candidate."""
        found = (
            self._eligible[job]
            & self.room(job, candidate.per_node or 1)
            & self.cluster.of_kind[candidate.kind]
        )
        return found & ~(self._spanning[0] | self._spanning[1]) if candidate.num_nodes > 1 else found

    def find(self, job: int, candidate: Candidate) -> Placement | None:
        """Return a place for `candidate` of a job that was taken out, None where it does not fit.

        The fullest nodes that still have room are filled first, in the problem's order among equals. Of a job
        that can move in place, nodes of wings that it can keep come before them.
        """
        if candidate.num_gpus == 0 and not self._is_running[job]:
            return Placement(candidate, ())
        if not self.may_have(job, candidate):
            return None
        if candidate.stays:
            return Placement(candidate, self._current[job]) if self._fits_current(job) else None
        if candidate.num_gpus == 0:
            return Placement(candidate, ())
        nodes = self.nodes_with_room(job, candidate)
        if not nodes:
            return None
        if candidate.in_place:
            kept = self._find_keeping_wings(job, candidate, nodes)
            if kept is not None:
                return kept
        if candidate.num_nodes == 1:
            for k in range(candidate.per_node + 1, len(self._room)):
                fuller = nodes & ~self._room[k]
                if fuller:
                    break
            return self.placement(
                job, candidate, (((fuller & -fuller).bit_length() - 1, candidate.per_node),)
            )
        if not candidate.per_node:  # free to choose
            return self._spread(job, candidate, nodes)
        if nodes.bit_count() < candidate.num_nodes:
            return None
        chosen = self._fullest(nodes, candidate.per_node, candidate.num_nodes)
        return self.placement(job, candidate, tuple((node, candidate.per_node) for node in sorted(chosen)))

    def _fullest(self, nodes: NodeSet, per_node: int, count: int) -> list[int]:
        """Return so many nodes of a set, those that have room for `per_node` GPUs and little more first."""
        chosen: list[int] = []
        for k in range(per_node + 1, len(self._room)):
            for node in members_of(nodes & ~self._room[k]):
                if len(chosen) == count:
                    return chosen
                chosen.append(node)
            nodes &= self._room[k]
        return chosen

    def placement(self, job: int, candidate: Candidate, gpus: tuple[tuple[int, int], ...]) -> Placement:
        """Return a candidate with its place: of the two ways to reach it, the one that this place has."""
        other = candidate.other
        moves = self._in_place
        if (
            other is not None
            and moves is not None
            and candidate.in_place != moves.is_place_in_place(job, gpus)
        ):
            candidate = other
        return Placement(candidate, gpus)

    def _find_keeping_wings(self, job: int, candidate: Candidate, nodes: NodeSet) -> Placement | None:
        """Return a place among `nodes`, with room, that keeps wings of the job: many of them, large first.

        Beside them, the fullest nodes are filled first, and other nodes of the job last.
        """
        wings = () if self._in_place is None else self._in_place.wings.get(job, ())
        if candidate.is_uneven:
            return self._spread_beside_wings(job, candidate, nodes, wings)
        count, share = candidate.num_nodes, candidate.per_node
        own = 0
        for wing in wings:
            own |= wing.nodes
        usable = [
            wing
            for wing in wings
            if not wing.nodes & ~nodes and wing.nodes.bit_count() <= count and wing.fits(share)
        ]
        for first in usable:
            chosen = first.nodes
            for wing in usable:
                if (chosen | wing.nodes).bit_count() <= count:
                    chosen |= wing.nodes
            found = list(members_of(chosen))
            for rest in (nodes & ~own, nodes & own & ~chosen):
                found += self._fullest(rest, share, count - len(found))
            if len(found) == count:
                placed = self.placement(job, candidate, tuple((node, share) for node in sorted(found)))
                if placed.candidate.in_place:
                    return placed
        return None

    def _spread_beside_wings(
        self, job: int, candidate: Candidate, nodes: NodeSet, wings: Sequence[Wing]
    ) -> Placement | None:
        """Return a place that is free to choose: wings of the job as they are, the rest on other nodes."""
        own, chosen, rest = 0, dict[int, int](), candidate.num_gpus
        for wing in wings:
            own |= wing.nodes
            total = sum(gpus for _, gpus in wing.gpus)
            if total <= rest and all(
                node not in chosen and (nodes & self.room(job, gpus)) >> node & 1 for node, gpus in wing.gpus
            ):
                chosen.update(wing.gpus)
                rest -= total
        if rest:
            others = self._split(job, rest, min(rest, self.cluster.max_gpus_per_node), nodes & ~own)
            chosen.update(others or ())
            rest = 0 if others else rest
        if rest or len(chosen) < 2:
            return None
        placed = self.placement(job, candidate, tuple(sorted(chosen.items())))
        return placed if placed.candidate.in_place else None

    def _fits_current(self, job: int) -> bool:
        current, free = self._current[job], self.free
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

    def _spread(self, job: int, candidate: Candidate, nodes: NodeSet) -> Placement | None:
        """Return K GPUs on the emptiest of these nodes, the rest on the fullest that has room for it."""
        most = min(candidate.num_gpus - 1, self.cluster.max_gpus_per_node)  # on two nodes at least
        if nodes.bit_count() < 2:
            return None
        found = self._split(job, candidate.num_gpus, most, nodes)
        return None if found is None else self.placement(job, candidate, tuple(sorted(found)))

    def _split(self, job: int, num_gpus: int, most: int, nodes: NodeSet) -> list[tuple[int, int]] | None:
        """Return nodes and shares of so many GPUs, at most `most` on a node; None where they do not fit."""
        room = [nodes, *(nodes & self.room(job, k) for k in range(1, most + 1))]
        rest, found = num_gpus, list[tuple[int, int]]()
        if sum(each.bit_count() for each in room[1:]) < rest:
            return None
        k = most
        while True:
            while not room[k]:
                k -= 1
            if k >= rest:
                fullest = rest
                while not (exact := room[fullest] & ~(room[fullest + 1] if fullest < most else 0)):
                    fullest += 1
                found.append(((exact & -exact).bit_length() - 1, rest))
                return found
            lowest = room[k] & -room[k]
            found.append((lowest.bit_length() - 1, k))
            rest -= k
            for below in range(k + 1):
                room[below] &= ~lowest

    def num_with(self, nodes: NodeSet) -> list[int]:
        """Return how many of these nodes have at least k free GPUs, k from 0 to one more than any has."""
        return [(nodes & room).bit_count() for room in self._room]

    def fit(self, job: int, candidate: Candidate, nodes: Sequence[int]) -> Placement | None:
        """Return `candidate` placed on exactly these nodes, None where it does not fit."""
        if candidate.stays:
            return self.find(job, candidate)
        chosen = node_set(nodes)
        if chosen & ~self.nodes_with_room(job, candidate) or not self.may_have(job, candidate):
            return None
        if candidate.is_uneven:
            return self._spread(job, candidate, chosen)
        return self.placement(job, candidate, tuple((node, candidate.per_node) for node in sorted(nodes)))

    def alike(self, nodes: NodeSet) -> list[NodeSet]:
        """Return the parts of a set of nodes that have the same free, and jobs over several nodes on them."""
        found: dict[tuple[int, ...], NodeSet] = {}
        spanning = self._spanning[0] | self._spanning[1]
        plain = not self.cluster.is_tight and len(self.cluster.of_kind) == 1
        if plain and not spanning & nodes:
            parts = []
            for k in range(1, len(self._room)):
                if fuller := nodes & ~self._room[k]:
                    parts.append(fuller)
                    nodes &= self._room[k]
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

    def has_room(self, job: int, candidate: Candidate, gpus: Sequence[tuple[int, int]]) -> bool:
        """Whether a taken-out job may stand exactly there, limits and moves aside."""
        fits = self.nodes_with_room(job, candidate)
        return all((fits & self.room(job, count)) >> node & 1 for node, count in gpus)

    def without_spanning(self) -> NodeSet:
        """Return the nodes without a multi-node job."""
        every = self._room[0]
        return every & ~(self._spanning[0] | self._spanning[1])

    def current_gpus(self, job: int) -> tuple[tuple[int, int], ...]:
        """Return (node index, GPUs) of a job's current allocation."""
        return self._current[job]

    def current_node_sets(self, job: int) -> list[NodeSet]:
        """Return the nodes of a job's current allocation, grouped by the GPUs and wings on each."""
        if job not in self._current_node_sets:
            found: dict[tuple[object, ...], NodeSet] = {}
            wings = {} if self._in_place is None else self._in_place.wings_by_node(job)
            for node, gpus in self._current[job]:
                found[gpus, wings.get(node)] = found.get((gpus, wings.get(node)), 0) | 1 << node
            self._current_node_sets[job] = list(found.values())
        return self._current_node_sets[job]

    def current_owners(self, node: int) -> list[int]:
        """Return the jobs that own GPUs of a node before the decision."""
        return self._current_owners[node]

    def eligible(self, job: int) -> NodeSet:
        """Return the nodes on which a job may get a new allocation."""
        return self._eligible[job]

    def usable(self, job: int, kind: int) -> NodeSet:
        """Return the nodes of a GPU type on which a job may get a new allocation."""
        return self._eligible[job] & self.cluster.of_kind[kind]
