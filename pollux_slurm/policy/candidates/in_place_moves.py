"""Which changes of allocations are made in place: those that keep a wing of their job (`model.wings`).

A change in place has its own delay, so a column has two values: by requeue and in place. Which of them counts
is known once it is placed on nodes.
Legend: J jobs, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Allocation, Problem, ProblemJob, ReallocationWay, wing_changes
from pollux_slurm.policy.objectives.restart_penalty import can_move_in_place, move_delay_s
from pollux_slurm.policy.problem.node_sets import NodeSet, node_set
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wing:
    """A wing as searches use it: its (node index, GPUs) and nodes, and which nodes may have several wings."""

    gpus: tuple[tuple[int, int], ...]
    nodes: NodeSet
    several: NodeSet

    @property
    def num_gpus(self) -> int:
        return sum([gpus for _, gpus in self.gpus])

    def fits(self, per_node: int) -> bool:
        """Return whether it can be kept where its job has so many GPUs on each node."""
        return all(
            gpus == per_node or (gpus < per_node and self.several >> node & 1) for node, gpus in self.gpus
        )


class InPlaceRule:
    """Whether a job of a problem goes to another allocation in place.

    A new wing beside one that leaves its node later needs GPUs that are free before the decision.
    """

    def __init__(self, problem: Problem) -> None:
        self.several = frozenset(node.name for node in problem.nodes if node.several_wings)
        self.free = {node.name: node.num_gpus for node in problem.nodes}
        for job in problem.jobs:
            for name, gpus in job.current.gpus_by_node:
                if name in self.free and type(gpus) is int:  # a job that is excluded may have anything
                    self.free[name] -= gpus

    def allows(self, job: ProblemJob, allocation: Allocation) -> bool:
        """Return whether it does; False where the allocation does not change."""
        if not can_move_in_place(job) or allocation == job.current:
            return False
        changes = wing_changes(job.wings, allocation, several_wings=self.several.__contains__)
        return changes is not None and changes.has_room(job.wings, self.free.__getitem__)


def expected_move(
    problem: Problem, job: ProblemJob, allocation: Allocation
) -> tuple[ReallocationWay, float] | None:
    """Return how a job of a problem goes to an allocation, and the delay that decisions expect of that.

    None where its allocation does not change, and where it waits before or after.
    """
    if not job.current or not allocation or allocation == job.current:
        return None
    in_place = InPlaceRule(problem).allows(job, allocation)
    way = ReallocationWay.IN_PLACE if in_place else ReallocationWay.REQUEUE
    return way, move_delay_s(job, in_place=in_place)


class InPlaceMoves:
    """The jobs that can move in place. `wings` has those of each such row, large ones first."""

    def __init__(self, problem: Problem, jobs: Sequence[ProblemJob], tables: SpeedupTables) -> None:
        self._jobs, self._tables = jobs, tables
        index = tables.facts.index
        self._rule = InPlaceRule(problem)
        several = node_set(index[name] for name in self._rule.several)
        self.wings: dict[int, tuple[Wing, ...]] = {}
        for row, job in enumerate(jobs):
            if can_move_in_place(job):
                ordered = sorted(job.wings, key=lambda wing: -wing.num_gpus)
                places = (tuple((index[name], gpus) for name, gpus in w.gpus_by_node) for w in ordered)
                self.wings[row] = tuple(
                    Wing(gpus=gpus, nodes=(on := node_set(node for node, _ in gpus)), several=several & on)
                    for gpus in places
                )
        self._columns: dict[tuple[int, tuple[tuple[int, int], ...]], BoolArray] = {}
        self._known: dict[tuple[int, tuple[tuple[int, int], ...]], bool] = {}

    def wings_by_node(self, row: int) -> dict[int, tuple[object, ...]]:
        """Return what matters of each node with wings of a job: of nodes with the same, any is as good."""
        found: dict[int, list[object]] = {}
        for number, wing in enumerate(self.wings.get(row, ())):
            for node, gpus in wing.gpus:
                # A wing on several nodes is kept as a whole, so no other is like it.
                found.setdefault(node, []).append((gpus, number if len(wing.gpus) > 1 else -1))
        names, rule = self._tables.facts.names, self._rule
        return {
            node: (*on_node, names[node] in rule.several, rule.free[names[node]])
            for node, on_node in found.items()
        }

    def columns(self, row: int) -> BoolArray:
        """Return which columns, (C,), some wing of the job could be a part of, wherever others are."""
        tables, job = self._tables, self._jobs[row]
        found = np.zeros(len(tables.num_gpus), dtype=bool)
        usable = tables.facts.accepting
        if job.partition_nodes is not None:
            index = tables.facts.index
            usable &= node_set(index[name] for name in job.partition_nodes if name in index)
        for wing in self.wings[row]:
            kinds = {int(tables.facts.kind[node]) for node, _ in wing.gpus}
            if len(kinds) == 1 and not wing.nodes & ~usable:
                found |= self._columns_of(kinds.pop(), wing)
        return found

    def _columns_of(self, kind: int, wing: Wing) -> BoolArray:
        shape = tuple(sorted((gpus, wing.several >> node & 1) for node, gpus in wing.gpus))
        found = self._columns.get((kind, shape))
        if found is None:
            tables = self._tables
            share = tables.per_node
            fits = (tables.kind == kind) & (tables.num_nodes >= len(shape)) & (share > 0)
            for gpus, several in shape:
                fits &= (share == gpus) | ((share > gpus) & bool(several))
            # Where shares are free to choose, the wing keeps its own.
            total = sum(gpus for gpus, _ in shape)
            fits |= (tables.kind == kind) & (share == 0) & (tables.num_gpus >= total)
            self._columns[kind, shape] = found = fits
        return found

    def is_in_place(self, row: int, allocation: Allocation) -> bool:
        """Return whether a job goes to an allocation in place."""
        return row in self.wings and self._rule.allows(self._jobs[row], allocation)

    def is_place_in_place(self, row: int, gpus: tuple[tuple[int, int], ...]) -> bool:
        """Return the same for (node index, GPUs) pairs; known ones are looked up."""
        found = self._known.get((row, gpus))
        if found is None:
            names = self._tables.facts.names
            allocation = Allocation.of({names[node]: number for node, number in gpus})
            self._known[row, gpus] = found = self.is_in_place(row, allocation)
        return found
