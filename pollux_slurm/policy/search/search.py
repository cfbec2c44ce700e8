"""The solver `search`: dual prices, initial solutions, a large neighbourhood search, and a proof if small.

It ends early when the upper bound is nearly reached. Of equal solutions the one with fewer changes is kept.
Work is bounded by counting steps; the watchdog (`stop`) only cuts it short.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.placed_state import State
from pollux_slurm.policy.pricing.candidate_pruning import PrunedCandidates
from pollux_slurm.policy.pricing.dual_bound import Dual, solve_dual
from pollux_slurm.policy.pricing.relaxation import Relaxation
from pollux_slurm.policy.problem.deterministic_rounding import above
from pollux_slurm.policy.problem.node_sets import Cluster
from pollux_slurm.policy.search.branch_and_bound import BranchAndBound
from pollux_slurm.policy.search.initial_solutions import InitialSolutions
from pollux_slurm.policy.search.neighbourhood import improve_parts

# At effort 1: parts that are solved again, in all and for each job that may change; nodes of the tree of the
# whole problem.
_PARTS, _PARTS_PER_JOB, _BRANCH_NODES = 300, 16, 20_000
# Nodes of the tree of a part, at most and at least.
_TREE_NODES, _LEAST_TREE_NODES = 150, 30
# The most jobs for which branch and bound of the whole problem is worth a try.
_BRANCH_JOBS = 8
# With more jobs than this, two initial solutions are tried. Only a few parts are solved again, with smaller
# trees, if the gap is larger than `_LARGE_GAP`.
_MANY_JOBS = 100
_FEW_PARTS, _SMALL_TREE_NODES, _LARGE_GAP = 8, 100, 4e-3
# The gap at which a solution is good enough, at effort 1 and at the least effort.
_SMALL_GAP, _ACCEPTED_GAP = 1e-3, 5e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """The best placed state found, its value, a value that none can exceed, and the prices of resources."""

    state: State
    value: float
    bound: float
    dual: Dual
    timed_out: bool = False


def solve(
    cluster: Cluster,
    candidates: Candidates,
    *,
    seed: int = 0,
    effort: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
) -> Solution:
    """Return the best solution found, never worth less than the current allocations.

    The work of the searches grows with `effort`, where the bound leaves any.
    """
    return _Search(cluster, candidates, seed=seed, effort=effort, stop=stop).run()


def _enough_for_current(candidates: Candidates, gap: float) -> float:
    """Return the bound at which the current allocations are good enough; −∞ where some jobs wait."""
    if candidates.waits.any():
        return -np.inf
    current = float(candidates.stay_value.sum())
    return current + 0.99 * gap * abs(current)  # the gap is a part of the bound, which is not known yet


class _Search:
    """One search: `best` is the state to return, worth `value`."""

    def __init__(
        self, cluster: Cluster, candidates: Candidates, *, seed: int, effort: float, stop: Callable[[], bool]
    ) -> None:
        self._cluster, self._candidates, self._effort, self._stop = cluster, candidates, effort, stop
        self._rng = random.Random(seed)
        self._relaxation = Relaxation(candidates, cluster)
        accepted = min(_SMALL_GAP / max(effort, 1e-9), _ACCEPTED_GAP) if effort < 1 else _SMALL_GAP
        self._dual = solve_dual(
            candidates,
            self._relaxation,
            enough=_enough_for_current(candidates, accepted) if effort < 1 else -np.inf,
        )
        self._movable = np.flatnonzero(~candidates.settled).tolist()
        self._few, self._many = len(self._movable) <= _BRANCH_JOBS, len(self._movable) > _MANY_JOBS
        # The value of the bound without the costs of waiting and of broken promises, which are so large that
        # a gap in proportion to them would hide all that served jobs can gain.
        waits = (self._dual.choice < 0) & candidates.waits
        costs = float(candidates.waiting_cost[waits].sum())
        if candidates.promised.any():
            costs += float(candidates.cost_of_broken(candidates.gpus_of(self._dual.choice)).sum())
        self._worth = abs(self._dual.bound + costs)
        # For few jobs the search goes on to the optimum, and proves it.
        self._enough = self._below_bound(0.0 if self._few and effort >= 1 else accepted)
        self._initial = InitialSolutions(
            cluster, candidates, self._relaxation, self._dual, enough=self._below_bound(accepted)
        )
        self._timed_out = False

    def run(self) -> Solution:
        """Return the best solution that the allowed work finds."""
        self._take_up(self._initial.current())
        for state in self._other_starts():
            self._take_up_if_better(state)
        self._serve_all()
        if not self._many:
            self._solve_parts(min(_PARTS, _PARTS_PER_JOB * len(self._movable)), _TREE_NODES)
        elif self._value < self._below_bound(_LARGE_GAP):
            self._solve_parts(_FEW_PARTS, _SMALL_TREE_NODES)
        return self._solution(self._branch() if self._few else self._dual.bound)

    def _other_starts(self) -> Iterator[State]:
        """Yield further initial solutions until one is good enough."""
        if self._is_good():
            return
        # At some prices waiting is worth as much as being served, so waiting jobs have no regret. Where the
        # choices cannot be placed, idle GPUs are given to waiting jobs directly.
        yield self._initial.from_prices() or self._initial.current(filled=True)
        if not self._many:
            others = self._initial.from_even_shares()
            while not self._is_good() and (state := next(others, None)) is not None:
                yield state

    def _serve_all(self) -> None:
        """If a job waits although all minimums may fit, place all jobs again at their minimums."""
        candidates = self._candidates
        served = np.array([one.candidate.num_gpus > 0 for one in self._best.placed_jobs()], dtype=bool)
        left = candidates.waits & ~served
        if candidates.scores.serves_all:
            left &= candidates.waiting_cost > 0  # where jobs may be paused, those at work are chosen, not all
        if self._is_over() or not left.any():
            return
        fewest = np.where(candidates.allowed, candidates.tables.num_gpus[None, :], 10**9).min(
            axis=1, initial=10**9
        )
        if not (left & (fewest < 10**9)).any():
            return
        current = candidates.stay_gpus[: candidates.num_jobs].sum(axis=1)
        if (
            np.minimum(np.where(candidates.waits, fewest, current), fewest).sum()
            > self._cluster.capacity[:, 0].sum()
        ):
            return
        packed = self._initial.from_minimums()
        if packed is not None:
            self._take_up_if_better(packed)

    def _take_up(self, state: State) -> None:
        self._best, self._value = state, state.value()

    def _take_up_if_better(self, state: State) -> None:
        if state.value() > above(self._value):
            self._take_up(state)

    def _solve_parts(self, parts: int, tree_nodes: int) -> None:
        if self._is_good():
            return
        self._timed_out |= improve_parts(
            self._best,
            self._pruned(),
            max_parts=self._much(parts),
            tree_nodes=min(max(self._much(tree_nodes), _LEAST_TREE_NODES), tree_nodes),
            enough=self._enough,
            rng=self._rng,
            stop=self._stop,
        )
        self._take_up(self._best)

    def _branch(self) -> float:
        """Solve the whole problem by branch and bound, if it is small; return an upper bound."""
        tables = self._candidates.tables
        uneven = bool(((tables.per_node == 0) & (tables.num_gpus > 0)).any())
        if uneven or self._is_good():
            return self._dual.bound
        pruned = self._pruned()
        slack = pruned.slack(self._best)
        nodes = self._much(_BRANCH_NODES)
        proved = BranchAndBound(self._best, pruned, self._movable, slack=slack, max_nodes=nodes).run()
        self._take_up(self._best)
        return self._value if proved else self._dual.bound

    def _pruned(self) -> PrunedCandidates:
        return PrunedCandidates(
            self._candidates, self._relaxation, self._dual, limit=self._dual.bound - self._value
        )

    def _is_good(self) -> bool:
        """Whether the solution is good enough, or time is up."""
        return above(self._value) >= self._enough or self._is_over()

    def _is_over(self) -> bool:
        self._timed_out |= self._stop()
        return self._timed_out

    def _much(self, count: int) -> int:
        return round(self._effort * count)

    def _below_bound(self, gap: float) -> float:
        return self._dual.bound - gap * self._worth

    def _solution(self, bound: float) -> Solution:
        if self._value < bound:
            self._initial.fill_idle(self._best)
            self._take_up(self._best)
        return Solution(
            state=self._best,
            value=self._value,
            bound=bound,
            dual=self._dual,
            timed_out=self._timed_out,
        )
