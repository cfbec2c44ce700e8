"""The solver `exact`: prices and bound, starts placed from them, searches, and a proof where small.

It ends early when the upper bound is nearly reached. Ties go to the earlier start, so that what the jobs hold
wins unless a change is worth it. Work is bounded by counting steps; the watchdog (`stop`) only cuts it short.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.placed_state import State
from pollux_slurm.policy.exact.branch_and_bound import Branch
from pollux_slurm.policy.exact.initial_solutions import Starts
from pollux_slurm.policy.exact.local_search import LocalSearch, above, value
from pollux_slurm.policy.exact.neighbourhood import improve_parts
from pollux_slurm.policy.pricing.candidate_pruning import Offers
from pollux_slurm.policy.pricing.dual_bound import solve_dual
from pollux_slurm.policy.pricing.pricing import Dual, Market
from pollux_slurm.policy.problem.node_sets import Cluster

# At effort 1: displacements tried from each start, and from the best of them; nodes of the branch-and-bound
# tree; parts of a placed answer that are solved anew.
_FIRST_STEPS, _MORE_STEPS, _BRANCH_STEPS, _PARTS = 500, 2000, 20_000, 300
# Nodes of the tree of a part, at most and at least.
_TREE_STEPS, _LEAST_TREE_STEPS = 100, 30
# At less effort than this, only the best start is improved.
_ALL_STARTS = 0.5
# The most jobs for which branch and bound of the whole problem is worth a try.
_BRANCH_JOBS = 8
# With more jobs than this one start is placed, and of that only a few parts are solved anew, where the gap is
# larger than the one named.
_MANY_JOBS = 100
_FEW_PARTS, _LARGE_GAP = 16, 4e-3
# The gap at which an answer is good enough, at effort 1 and at the least effort.
_SMALL_GAP, _ACCEPTED_GAP = 1e-3, 5e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """The best placed state found, its value, a value that none can exceed, and the prices of resources."""

    state: State
    value: float
    bound: float
    dual: Dual
    timed_out: bool = False


def total_value(state: State, candidates: Candidates) -> float:
    """Return what all jobs of the objective add to the sum."""
    return value(state, range(candidates.num_jobs))


def solve(
    cluster: Cluster,
    candidates: Candidates,
    *,
    seed: int = 0,
    effort: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
) -> Solution:
    """Return the best placed state found; never worth less than what the jobs hold.

    The work of the searches grows with `effort`, where the bound leaves any.
    """
    return _Search(cluster, candidates, seed=seed, effort=effort, stop=stop).run()


def _near(candidates: Candidates, gap: float) -> float:
    """Return the bound at which what the jobs hold is near enough to it; −∞ where some wait."""
    if candidates.waits.any():
        return -np.inf
    held = float(candidates.stay_value.sum())
    return held + 0.99 * gap * abs(held)  # the gap is a part of the bound, which is not known yet


class _Search:
    """One search: `best` is the state to return, worth `value`."""

    def __init__(
        self, cluster: Cluster, candidates: Candidates, *, seed: int, effort: float, stop: Callable[[], bool]
    ) -> None:
        self._cluster, self._candidates, self._effort, self._stop = cluster, candidates, effort, stop
        self._rng = random.Random(seed)
        self._market = Market(candidates, cluster)
        accepted = min(_SMALL_GAP / max(effort, 1e-9), _ACCEPTED_GAP) if effort < 1 else _SMALL_GAP
        self._dual = solve_dual(
            candidates, self._market, enough=_near(candidates, accepted) if effort < 1 else -np.inf
        )
        self._movable = np.flatnonzero(~candidates.settled).tolist()
        # At little effort a proof is not worth its time, and what parts find as good.
        self._few = len(self._movable) <= _BRANCH_JOBS and effort >= _ALL_STARTS
        self._many = len(self._movable) > _MANY_JOBS
        # What the bound's jobs are worth, without what it costs that some of them wait: beside that, a gap in
        # proportion would hide all that can be gained by those who are served.
        waits = (self._dual.choice < 0) & candidates.waits
        self._worth = abs(self._dual.bound + float(candidates.waiting_cost[waits].sum()))
        # Of few jobs the best answer is wanted, and proved.
        self._enough = self._below_bound(0.0 if self._few and effort >= 1 else accepted)
        self._starts = Starts(
            cluster, candidates, self._market, self._dual, enough=self._below_bound(accepted)
        )
        self._timed_out = False

    def run(self) -> Solution:
        """Return the best state that the work allowed comes to."""
        if self._many:
            self._take_up(self._starts.bought() or self._starts.held(filled=True))
            self._serve_all()
            if not self._is_over() and self._value < self._below_bound(_LARGE_GAP):
                self._solve_parts(_FEW_PARTS)
            return self._solution(self._dual.bound)
        if self._effort < _ALL_STARTS:
            self._take_up(self._starts.held())
            if self._value < self._enough:
                bought = self._starts.bought() or self._starts.held(filled=True)
                if total_value(bought, self._candidates) > above(self._value):
                    self._take_up(bought)
        else:
            self._climb_from_each()
        self._serve_all()
        self._climb(_MORE_STEPS, widely=True)
        if not self._few:
            self._solve_parts(_PARTS)
        return self._solution(self._branch() if self._few else self._dual.bound)

    def _climb_from_each(self) -> None:
        best: State | None = None
        best_value = -np.inf
        for state in self._all_starts():
            self._take_up(state)
            limit = max(best_value, self._value)
            self._climb(_FIRST_STEPS, widely=False, known=limit)
            if best is None or self._value > above(best_value):
                best, best_value = self._best, self._value
            if self._is_over() or above(best_value) >= self._enough:
                break
        assert best is not None
        self._take_up(best)

    def _serve_all(self) -> None:
        """Where somebody is left waiting although all minimums may fit, place all jobs anew at these."""
        candidates, state = self._candidates, self._best
        fewest = np.where(candidates.allowed, candidates.tables.num_gpus[None, :], 10**9).min(
            axis=1, initial=10**9
        )
        served = np.array(
            [state.at(job).candidate.num_gpus > 0 for job in range(candidates.num_jobs)], dtype=bool
        )
        left = candidates.waits & ~served & (fewest < 10**9)
        if candidates.scores.serves_all:
            left &= candidates.waiting_cost > 0  # where jobs may be paused, those at work are chosen, not all
        if self._is_over() or not left.any():
            return
        held = candidates.stay_gpus[: candidates.num_jobs].sum(axis=1)
        if (
            np.minimum(np.where(candidates.waits, fewest, held), fewest).sum()
            > self._cluster.capacity[:, 0].sum()
        ):
            return
        packed = self._starts.smallest(anew=True)
        if packed is not None and total_value(packed, candidates) > above(self._value):
            self._take_up(packed)

    def _all_starts(self) -> Iterator[State]:
        starts = self._starts
        if self._few:
            yield starts.held()
        bought = starts.bought()
        if bought is not None:
            yield bought
        yield from starts.narrow()
        if not self._few:
            # At prices at which waiting and being served are as good, nobody regrets to wait: what is idle is
            # sold first.
            yield starts.held(filled=bought is None)
        smallest = starts.smallest()
        if smallest is not None:
            yield smallest

    def _take_up(self, state: State) -> None:
        self._best, self._value = state, total_value(state, self._candidates)

    def _climb(self, steps: int, *, widely: bool, known: float = -np.inf) -> None:
        """Search around the state; an answer worth `known` is there already."""
        if self._is_over() or self._value >= self._enough:
            return
        search = LocalSearch(self._best, self._offers(known), max_steps=self._much(steps), stop=self._stop)
        search.climb(widely=widely)
        self._timed_out |= search.stopped
        self._take_up(self._best)

    def _solve_parts(self, parts: int) -> None:
        if self._is_over() or self._value >= self._enough:
            return
        self._timed_out |= improve_parts(
            self._best,
            self._offers(),
            max_parts=self._much(parts),
            tree_steps=min(max(self._much(_TREE_STEPS), _LEAST_TREE_STEPS), _TREE_STEPS),
            rng=self._rng,
            stop=self._stop,
        )
        self._take_up(self._best)

    def _branch(self) -> float:
        """Search everything, if there is not too much of it; return what no answer is worth more than."""
        tables = self._candidates.tables
        uneven = bool(((tables.per_node == 0) & (tables.num_gpus > 0)).any())
        if self._is_over() or uneven or above(self._value) >= self._enough:
            return self._dual.bound
        offers = self._offers()
        slack = offers.slack(self._best)
        steps = self._much(_BRANCH_STEPS)
        proved = Branch(self._best, offers, self._movable, slack=slack, max_steps=steps).run()
        self._take_up(self._best)
        return self._value if proved else self._dual.bound

    def _offers(self, known: float = -np.inf) -> Offers:
        limit = self._dual.bound - max(self._value, known)
        return Offers(self._candidates, self._market, self._dual, limit=limit)

    def _is_over(self) -> bool:
        self._timed_out |= self._stop()
        return self._timed_out

    def _much(self, steps: int) -> int:
        return round(self._effort * steps)

    def _below_bound(self, gap: float) -> float:
        return self._dual.bound - gap * self._worth

    def _solution(self, bound: float) -> Solution:
        if self._value < bound:
            self._starts.top_up(self._best)
            self._take_up(self._best)
        return Solution(
            state=self._best,
            value=self._value,
            bound=bound,
            dual=self._dual,
            timed_out=self._timed_out,
        )
