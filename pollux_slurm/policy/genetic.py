"""The solver `genetic`: the search of the paper (Pollux, OSDI 2021, section 4.2.1), as a reference.

A population of allocation matrices: members × jobs × nodes, GPUs of each job on each node. The first
population is the current allocations and the greedy solution, mutated. In each generation:

1. Every member is mutated: an entry becomes a random number of GPUs with probability 1/n or less.
2. Tournaments choose pairs of parents. Each job's row comes from one parent or the other.
3. Offspring are repaired. GPUs beyond a node's size are taken off at random, multi-node jobs that share a
   node are thinned out, and rows are cut to what the job may have.
4. Parents and offspring compete, and the best of both go on.

Numpy only, from a seeded generator.

Legend: P members, J jobs, n nodes. Scores are those of the candidates, so fitness compares with any solver's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.in_place_moves import Wing
from pollux_slurm.policy.candidates.place_search import find_place, has_room, placed_at
from pollux_slurm.policy.candidates.placed_state import Placement, State
from pollux_slurm.policy.greedy import solve_greedily
from pollux_slurm.policy.pricing.dual_bound import solve_dual
from pollux_slurm.policy.pricing.relaxation import Relaxation
from pollux_slurm.policy.problem.node_sets import Cluster, members_of
from pollux_slurm.policy.search.search import Solution

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

POPULATION = 100
GENERATIONS = 100


def solve_genetically(
    cluster: Cluster,
    candidates: Candidates,
    *,
    seed: int = 0,
    effort: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
    population: int = POPULATION,
    generations: int = GENERATIONS,
) -> Solution:
    """Return the best member of the last generation, never worse than the current allocations."""
    dual = solve_dual(candidates, Relaxation(candidates, cluster))
    start = solve_greedily(cluster, candidates).state
    current = State(cluster, candidates)
    movable = np.flatnonzero(~candidates.settled)
    if not len(movable) or not len(cluster.names):
        return Solution(state=current, value=current.value(), bound=dual.bound, dual=dual)
    breed = _Breed(current, candidates, movable, np.random.default_rng(seed))
    first = np.stack([breed.matrix(current), breed.matrix(start)])
    members = np.concatenate([first, breed.mutate(first[np.arange(population - 2) % 2])])
    members[2:] = breed.repair(members[2:])
    worth = breed.worth(members)
    timed_out = False
    for _ in range(round(effort * generations)):
        if stop():
            timed_out = True
            break
        young = breed.repair(breed.mutate(breed.cross(members, worth)))
        both, value = np.concatenate([members, young]), np.concatenate([worth, breed.worth(young)])
        keep = np.argsort(-value, kind="stable")[:population]
        members, worth = both[keep], value[keep]
    state = breed.state(members[int(worth.argmax())])
    best = max((current, start, state), key=State.value)
    return Solution(state=best, value=best.value(), bound=dual.bound, dual=dual, timed_out=timed_out)


class _Breed:
    """The rules by which members of one problem change."""

    def __init__(
        self, current: State, candidates: Candidates, movable: IntArray, rng: np.random.Generator
    ) -> None:
        self._current, self._candidates, self._movable, self._rng = current, candidates, movable, rng
        cluster = current.cluster
        self._base = self._rows(current)
        free = np.array(current.free, dtype=np.int64)
        for row in range(len(movable)):
            free += self._base[row]
        self._room = np.maximum(free, 0)
        self._usable = np.zeros((len(movable), len(free)), dtype=bool)
        for row, job in enumerate(movable.tolist()):
            self._usable[row, list(members_of(current.eligible[job]))] = True
        self._kind = cluster.kind
        self._most = np.array(
            [int(candidates.tables.num_gpus[candidates.allowed[job]].max(initial=0)) for job in movable],
            dtype=np.int64,
        )
        tables = candidates.tables
        # Worth by (job, type, spread, K): a dense table to look members up in.
        size = int(max(tables.num_gpus.max(initial=0), self._base.sum(axis=1).max(initial=0))) + 1
        kinds = len(tables.kinds)
        self._worth = np.full((len(movable), kinds, 2, size), -np.inf)
        paused = (
            -np.inf if candidates.pause_column is None else candidates.value[movable, candidates.pause_column]
        )
        self._nothing = np.where(candidates.waits[movable], candidates.stay_value[movable], paused)
        self._stay = candidates.stay_value[movable]
        for column in range(len(tables.num_gpus)):
            spot = (int(tables.kind[column]), int(tables.num_nodes[column] > 1), int(tables.num_gpus[column]))
            self._worth[:, spot[0], spot[1], spot[2]] = candidates.value_by_requeue[movable, column]
        self._in_place = self._worth_in_place()
        self._equal = not bool(((tables.per_node == 0) & (tables.num_gpus > 0)).any())

    def _worth_in_place(self) -> list[tuple[int, FloatArray, list[Wing]]]:
        """Return row, worth as in `_worth`, and wings of the jobs that can move in place."""
        candidates, tables, found = self._candidates, self._candidates.tables, []
        moves, values = candidates.in_place, candidates.value_in_place
        for row, job in enumerate(self._movable.tolist()):
            if moves is not None and values is not None and job in moves.wings:
                worth = self._worth[row].copy()
                possible = np.isfinite(values[job])
                spread = (tables.num_nodes[possible] > 1).astype(np.int64)
                worth[tables.kind[possible], spread, tables.num_gpus[possible]] = values[job, possible]
                found.append((row, worth, list(moves.wings[job])))
        return found

    def _keeps_a_wing(self, members: IntArray, row: int, wings: list[Wing]) -> npt.NDArray[np.bool_]:
        """Return in which members (P,) a job can keep one of its wings; `Placement`s are exact about it."""
        found = np.zeros(len(members), dtype=bool)
        for wing in wings:
            kept = np.ones(len(members), dtype=bool)
            for node, gpus in wing.gpus:
                given = members[:, row, node]
                kept &= (given >= gpus) if wing.several >> node & 1 else (given == gpus)
            found |= kept
        return found

    def _rows(self, state: State) -> IntArray:
        rows = np.zeros((len(self._movable), len(state.free)), dtype=np.int64)
        for row, job in enumerate(self._movable.tolist()):
            placed = state.placed[job]
            for node, gpus in placed.gpus if placed is not None else ():
                rows[row, node] = gpus
        return rows

    def matrix(self, state: State) -> IntArray:
        return self._rows(state)

    def mutate(self, members: IntArray) -> IntArray:
        """Set each entry, with probability 1/n or less, to a random number of GPUs of its node.

        How much less is drawn for each member, down to a hundredth: late generations need small changes.
        """
        rng = self._rng
        rate = 10.0 ** rng.uniform(-2.0, 0.0, size=(len(members), 1, 1)) / members.shape[2]
        hit = rng.random(members.shape) < rate
        fresh = rng.integers(0, self._room + 1, size=members.shape)
        return np.where(hit, fresh, members).astype(np.int64)

    def cross(self, members: IntArray, worth: FloatArray) -> IntArray:
        """Return children of tournament winners: each job's row comes from one of two parents."""
        rng, size = self._rng, len(members)
        rivals = rng.integers(0, size, size=(2, 2, size))
        won = np.where(worth[rivals[:, 0]] >= worth[rivals[:, 1]], rivals[:, 0], rivals[:, 1])
        from_first = rng.random(members.shape[:2]) < 0.5
        children = np.where(from_first[:, :, None], members[won[0]], members[won[1]])
        return np.asarray(children, dtype=np.int64)

    def repair(self, members: IntArray) -> IntArray:
        """Bring members within nodes' GPUs, jobs' bounds, one GPU type a job, one spanning job a node."""
        members = np.where(self._usable[None], members, np.minimum(members, self._base[None]))
        same = (members == self._base[None]).all(axis=2)
        members = self._one_kind(members, same)
        if self._equal:
            members = self._equal_shares(members, same)
        members = self._thin_spanning(members)
        members = self._fit_nodes(members)
        if self._equal:
            members = self._equal_shares(members, (members == self._base[None]).all(axis=2))
        return members

    def _one_kind(self, members: IntArray, same: npt.NDArray[np.bool_]) -> IntArray:
        for kind in range(int(self._kind.max()) + 1):
            here = members[:, :, self._kind == kind].sum(axis=2)
            others = members[:, :, self._kind != kind].sum(axis=2)
            drop = ~same & (here > 0) & (here < others)
            members = np.where(drop[:, :, None] & (self._kind == kind), 0, members)
        return members

    def _equal_shares(self, members: IntArray, same: npt.NDArray[np.bool_]) -> IntArray:
        least = np.where(members > 0, members, 10**9).min(axis=2)
        equal = np.where(members > 0, least[:, :, None], 0)
        return np.where(same[:, :, None], members, equal)

    def _thin_spanning(self, members: IntArray) -> IntArray:
        """Leave at most one job over several nodes on each node; who stays is drawn."""
        spans = ((members > 0).sum(axis=2) > 1)[:, :, None] & (members > 0)
        draw = np.where(spans, self._rng.random(members.shape[:2])[:, :, None], -1.0)
        keep = draw == draw.max(axis=1, keepdims=True)
        return np.where(spans & ~keep, 0, members)

    def _fit_nodes(self, members: IntArray) -> IntArray:
        """Take GPUs off crowded nodes and off jobs that have more than they may, in a random order."""
        order = self._rng.permutation(members.shape[1])
        left = np.broadcast_to(self._room, (len(members), len(self._room))).copy()
        fitted = np.zeros_like(members)
        for job in order.tolist():
            row = np.minimum(members[:, job], np.maximum(left, 0))
            most = max(int(self._most[job]), int(self._base[job].sum()))
            over = row.cumsum(axis=1) - most
            row = np.clip(row - np.maximum(over, 0), 0, None)
            fitted[:, job] = row
            left -= row
        return fitted

    def worth(self, members: IntArray) -> FloatArray:
        """Return the sum of values of each member, −inf where a job has what it may not."""
        kinds = len(self._candidates.tables.kinds)
        total = np.zeros(len(members))
        gpus = members.sum(axis=2)
        spread = ((members > 0).sum(axis=2) > 1).astype(np.int64)
        kind = np.zeros(gpus.shape, dtype=np.int64)
        for one in range(1, kinds):
            kind = np.where(members[:, :, self._kind == one].sum(axis=2) > 0, one, kind)
        rows = np.arange(members.shape[1])[None, :]
        size = self._worth.shape[3]
        value = self._worth[rows, kind, spread, np.minimum(gpus, size - 1)]
        for row, worth, wings in self._in_place:
            in_place = worth[kind[:, row], spread[:, row], np.minimum(gpus[:, row], size - 1)]
            value[:, row] = np.where(self._keeps_a_wing(members, row, wings), in_place, value[:, row])
        value = np.where(gpus >= size, -np.inf, value)
        value = np.where(gpus == 0, self._nothing[None, :], value)
        same = (members == self._base[None]).all(axis=2)
        value = np.where(same, np.maximum(self._stay[None, :], -1e300), value)
        # What is not allowed costs more than anything else, and the fewer such jobs the better.
        lowest = 1e12 * max(float(np.abs(self._stay).max(initial=1.0)), 1.0)
        total += np.where(np.isfinite(value), value, -lowest).sum(axis=1)
        return total

    def state(self, member: IntArray) -> State:
        """Return a member as a placed state; a job whose row does not fit keeps what it has, if it can."""
        candidates = self._candidates
        state = State(self._current.cluster, candidates)
        rows = {int(job): member[row] for row, job in enumerate(self._movable.tolist())}
        changed = [
            job for row, job in enumerate(self._movable.tolist()) if (member[row] != self._base[row]).any()
        ]
        before = {job: state.take(job) for job in changed}
        for job in changed:
            gpus = tuple((int(node), int(rows[job][node])) for node in np.flatnonzero(rows[job]))
            placed = self._placed(state, job, gpus)
            if placed is None:
                placed = find_place(state, job, before[job].candidate)
            if placed is None:
                return self._current
            state.put(job, placed)
        return state

    def _placed(self, state: State, job: int, gpus: tuple[tuple[int, int], ...]) -> Placement | None:
        candidates = self._candidates
        if not gpus:
            if candidates.waits[job]:
                return Placement(candidates.candidate(job, -1), ())
            if candidates.pause_column is None:
                return None
            pause = candidates.candidate(job, candidates.pause_column)
            return Placement(pause, ()) if state.may_have(job, pause) else None
        given = state.cluster.allocation_of(gpus)
        for column in candidates.columns_of(given):
            if candidates.allowed[job, column]:
                candidate = candidates.candidate(job, column)
                if state.may_have(job, candidate) and has_room(state, job, candidate, gpus):
                    return placed_at(state, job, candidate, gpus)
        return None
