"""Branch and bound over placements: proves which is the best where the problem is small enough.

Jobs are decided in turn. For each job, the search tries every candidate on every set of nodes that differs in
free GPUs, multi-node jobs, current owners or eligible jobs. A solution in which no job has regret and nothing
is unused is worth the upper bound (see `candidate_pruning`). So a branch is cut when the regrets of the
decided jobs exceed the gap between that bound and the best known solution.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from pollux_slurm.policy.candidates.candidate import Candidate
from pollux_slurm.policy.candidates.place_search import find_place, fit_on, placed_at
from pollux_slurm.policy.candidates.placed_state import Placement, State
from pollux_slurm.policy.pricing.candidate_pruning import PrunedCandidates
from pollux_slurm.policy.problem.deterministic_rounding import above
from pollux_slurm.policy.problem.node_sets import NodeSet, members_of

# Ways to spread one uneven allocation that are looked at, possible or not.
_SPLITS = 60


class BranchAndBound:
    """One search from `state`, in which the jobs of `part` are removed and placed again.

    `slack` is that of the state (`PrunedCandidates.slack`). Jobs whose shares are free to choose get some of
    their possible shares only: nothing is proved then.
    """

    def __init__(
        self, state: State, pruned: PrunedCandidates, part: Sequence[int], *, slack: float, max_nodes: int
    ) -> None:
        self._state, self._pruned, self._nodes_left = state, pruned, max_nodes
        regret = {job: pruned.regret(job, state.at(job).candidate) for job in part}
        # The largest regret first.
        self._order = sorted(part, key=lambda job: (-regret[job], job))
        # The most regret that a better solution may have.
        self._allowed = slack + sum(regret.values())
        self._best: list[Placement] = []
        self._value = self._best_value = 0.0

    def run(self) -> bool:
        """Put the best solution into the state; return whether it was proved best within `max_nodes`."""
        state = self._state
        self._best = [state.take(job) for job in self._order]
        self._value = self._best_value = sum(placed.candidate.value for placed in self._best)
        self._least = above(self._best_value)
        if self._order:
            self._descend(0, 0.0, 0.0)
        for job, placed in zip(self._order, self._best, strict=True):
            state.put(job, placed)
        return self._nodes_left > 0

    @property
    def gain(self) -> float:
        """The value of the best solution less that of the initial one."""
        return self._best_value - self._value

    def _descend(self, depth: int, so_far: float, regret_so_far: float) -> None:
        state = self._state
        job = self._order[depth]
        is_last = depth == len(self._order) - 1
        for regret, candidate in self._pruned.near(job):
            if regret_so_far + regret >= self._allowed:
                return
            for placed in self._last_places(depth, candidate) if is_last else self._places(depth, candidate):
                if self._nodes_left <= 0:
                    return
                self._nodes_left -= 1
                if is_last:
                    self._look_at(placed, so_far + placed.candidate.value)
                    continue
                # By the dearer of two ways it has more regret.
                more = regret_so_far + regret + placed.candidate.shortfall
                if more >= self._allowed:
                    continue
                state.put(job, placed)
                self._descend(depth + 1, so_far + placed.candidate.value, more)
                state.take(job)

    def _last_places(self, depth: int, candidate: Candidate) -> Iterable[Placement]:
        """Return placements of the last job's candidate, among them one of most value: any, mostly."""
        found = find_place(self._state, self._order[depth], candidate)
        if found is None:
            return ()
        return self._places(depth, candidate) if found.candidate.shortfall > 0 else (found,)

    def _look_at(self, last: Placement, total: float) -> None:
        """Keep the present solution, with the last job at `last`, if it is the best so far."""
        if total > self._least:
            self._best = [*(self._state.at(job) for job in self._order[:-1]), last]
            self._allowed -= total - self._best_value
            self._best_value, self._least = total, above(total)

    def _places(self, depth: int, candidate: Candidate) -> Iterator[Placement]:
        """Yield the placements of a candidate that differ for the jobs still undecided."""
        state, job = self._state, self._order[depth]
        if candidate.stays or candidate.num_gpus == 0:
            found = find_place(state, job, candidate)
            if found is not None:
                yield found
            return
        if not state.may_have(job, candidate):
            return
        nodes = state.nodes_with_room(job, candidate)
        if nodes.bit_count() < (2 if candidate.is_uneven else candidate.num_nodes):
            return
        alike = self._alike(depth, nodes, candidate)
        if candidate.num_nodes == 1:
            for some in alike:
                place = ((some & -some).bit_length() - 1, candidate.per_node)
                yield placed_at(state, job, candidate, (place,))
            return
        if candidate.is_uneven:
            yield from self._uneven_places(job, candidate, alike)
            return
        if len(alike) == 1:
            shares = _shares(_first(nodes, candidate.num_nodes), candidate.per_node)
            yield placed_at(state, job, candidate, shares)
            return
        counts = [min(some.bit_count(), candidate.num_nodes) for some in alike]
        for taken in _ways(counts, candidate.num_nodes):
            chosen = [node for count, some in zip(taken, alike, strict=True) for node in _first(some, count)]
            yield placed_at(state, job, candidate, _shares(sorted(chosen), candidate.per_node))

    def _uneven_places(self, job: int, candidate: Candidate, alike: Sequence[NodeSet]) -> Iterator[Placement]:
        """Yield a candidate on the fewest nodes that have room for it, or one more, each filled in turn."""
        counts = [range(min(some.bit_count(), candidate.num_nodes + 1) + 1) for some in alike]
        for taken in itertools.islice(itertools.product(*counts), _SPLITS):
            if not candidate.num_nodes <= sum(taken) <= candidate.num_nodes + 1:
                continue
            chosen = [node for count, some in zip(taken, alike, strict=True) for node in _first(some, count)]
            placed = fit_on(self._state, job, candidate, chosen)
            if placed is not None and len(placed.gpus) == len(chosen):
                yield placed

    def _alike(self, depth: int, nodes: NodeSet, candidate: Candidate) -> list[NodeSet]:
        """Return a set of nodes in parts; the nodes of a part are interchangeable.

        Where the nodes decide whether the candidate is reached in place, those of its job come first.
        """
        state = self._state
        parts = state.alike(nodes)
        if candidate.other is not None:
            own = 0
            for border in state.current_node_sets(self._order[depth]):
                own |= border
                parts = [half for part in parts for half in (part & border, part & ~border) if half]
            parts.sort(key=lambda part: not part & own)
        for job in self._order[depth + 1 :]:
            for border in (state.eligible[job], *state.current_node_sets(job)):
                if border & nodes and nodes & ~border:
                    parts = [half for part in parts for half in (part & border, part & ~border) if half]
        return parts


def _first(nodes: NodeSet, count: int) -> list[int]:
    return list(itertools.islice(members_of(nodes), count))


def _shares(nodes: Sequence[int], gpus: int) -> tuple[tuple[int, int], ...]:
    return tuple((node, gpus) for node in nodes)


def _ways(most: Sequence[int], total: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to take `total` from parts that have at most `most` each, the first part first."""
    if len(most) == 1:
        if total <= most[0]:
            yield (total,)
        return
    rest = sum(most[1:])
    for taken in range(min(most[0], total), max(total - rest, 0) - 1, -1):
        for others in _ways(most[1:], total - taken):
            yield (taken, *others)
