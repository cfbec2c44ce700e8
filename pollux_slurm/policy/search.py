"""The solver `exact`: prices and bound, starts placed from them, local search, and a proof where small.

The starts are what the jobs hold, what jobs buy at the dual's prices over several sets of options, placed job
by job, and everyone at the minimum. It ends early when the upper bound is reached. Ties go to the earlier
start, so that what the jobs hold wins unless a change is worth it. Work is bounded by counting steps; the
watchdog (`stop`) only cuts it short.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.bound import Dual, Market, solve_dual
from pollux_slurm.policy.branch import Branch
from pollux_slurm.policy.construct import Constructor
from pollux_slurm.policy.exchange import Exchange
from pollux_slurm.policy.local_search import LocalSearch, above, value
from pollux_slurm.policy.menu import Menu
from pollux_slurm.policy.neighbourhood import improve_parts
from pollux_slurm.policy.offers import Offers
from pollux_slurm.policy.placement import Cluster, State

BoolArray = npt.NDArray[np.bool_]

# At effort 1: displacements tried from each start, and from the best of them; nodes of the branch-and-bound
# tree; parts of a placed answer that are solved anew.
_FIRST_STEPS, _MORE_STEPS, _BRANCH_STEPS, _PARTS = 500, 2000, 20_000, 300
# At less effort than this, only the first start is improved.
_ALL_STARTS = 0.5
# The most jobs for which branch and bound of the whole problem is worth a try.
_BRANCH_JOBS = 8
# Of thousands of jobs, only a few parts are worth the time, and only where the gap is larger than this.
_FEW_PARTS, _LARGE_GAP = 16, 4e-3
# With more jobs than this, one start is placed, and the local search ends at a small gap.
_MANY_JOBS = 100
# Turns of filling and exchanging, how often a job looks in each, and the gap at which they end early.
_TURNS, _LOOKS_PER_JOB, _SMALL_GAP = 6, 1, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """The best placed state found, its value, a value that none can exceed, and the prices of resources."""

    state: State
    value: float
    bound: float
    dual: Dual
    timed_out: bool = False


def total_value(state: State, menu: Menu) -> float:
    """Return what all jobs of the objective add to the sum."""
    return value(state, range(menu.num_jobs))


def solve(
    cluster: Cluster,
    menu: Menu,
    *,
    seed: int = 0,
    effort: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
) -> Solution:
    """Return the best placed state found; never worth less than what the jobs hold.

    The work of the searches grows with `effort`, where the bound leaves any.
    """
    dual = solve_dual(menu, cluster)
    market = Market(menu, cluster)
    num_movable = int((~menu.settled).sum())
    few, many = num_movable <= _BRANCH_JOBS, num_movable > _MANY_JOBS
    enough = dual.bound - (0.0 if few else _SMALL_GAP * abs(dual.bound))
    worth_parts = dual.bound - _LARGE_GAP * abs(dual.bound) if many else enough
    best, value, timed_out = None, -np.inf, False

    def offers() -> Offers:
        return Offers(menu, market, dual, limit=dual.bound - value)

    def climb(state: State, steps: int, *, widely: bool) -> bool:
        search = LocalSearch(state, offers(), max_steps=round(effort * steps), stop=stop)
        search.climb(widely=widely)
        return search.stopped

    for state in _starts(cluster, menu, market, dual):
        found = total_value(state, menu)
        value = found if best is None else value
        if not many and found < enough and not timed_out:
            timed_out |= climb(state, _FIRST_STEPS, widely=False)
            found = total_value(state, menu)
        if best is None or found > above(value):
            best, value = state, found
        timed_out |= stop()
        if above(value) >= enough or effort < _ALL_STARTS:
            break
    assert best is not None
    if not many and value < enough and not timed_out:
        timed_out |= climb(best, _MORE_STEPS, widely=True)
        value = total_value(best, menu)
    if not few and value < worth_parts and not timed_out:
        parts = round(effort * (_FEW_PARTS if many else _PARTS))
        timed_out |= improve_parts(best, offers(), max_parts=parts, rng=random.Random(seed), stop=stop)
        value = total_value(best, menu)
    bound = dual.bound
    uneven = bool((menu.tables.per_node == 0).any())
    if few and not uneven and above(value) < bound and not timed_out:
        movable = np.flatnonzero(~menu.settled).tolist()
        known = offers()
        steps = round(effort * _BRANCH_STEPS)
        proved = Branch(best, known, movable, slack=known.slack(best), max_steps=steps).run()
        value = total_value(best, menu)
        bound = value if proved else bound
    return Solution(state=best, value=value, bound=bound, dual=dual, timed_out=timed_out)


def _starts(cluster: Cluster, menu: Menu, market: Market, dual: Dual) -> Iterator[State]:
    """Return the states to start from, what the jobs hold first."""
    num_movable = int((~menu.settled).sum())
    many = num_movable > _MANY_JOBS
    if num_movable <= _BRANCH_JOBS:
        yield State(cluster, menu)
    tables = menu.tables
    widest = cluster.widest
    gpus, share = tables.num_gpus, tables.per_node
    narrow: tuple[BoolArray, ...] = (
        (share > 0) & (widest % np.maximum(share, 1) == 0),
        (gpus & (gpus - 1) == 0) | (share == widest),
    )
    tried: list[npt.NDArray[np.int64]] = []
    for usable in (None, *narrow)[: 1 if many else 3]:
        found = dual if usable is None else solve_dual(menu, cluster, usable)
        if any((found.choice == other).all() for other in tried):
            continue
        tried.append(found.choice)
        state = State(cluster, menu)
        constructor = Constructor(state, menu, market, dual.prices)
        complete = constructor.build(found.choice)
        if complete:
            _refine(state, menu, constructor, dual)
            yield state
    if many and not complete:
        # A running job that was to move found no place: start from what all hold instead.
        state = State(cluster, menu)
        _refine(state, menu, Constructor(state, menu, market, dual.prices), dual)
        yield state
    if not many:
        if num_movable > _BRANCH_JOBS:
            yield State(cluster, menu)
        state = State(cluster, menu)
        constructor = Constructor(state, menu, market, dual.prices)
        if constructor.build(_smallest(menu)):
            _refine(state, menu, constructor, dual)
            yield state


def _refine(state: State, menu: Menu, constructor: Constructor, dual: Dual) -> None:
    """Fill what is idle and exchange, in turns, until the gap is small or nothing helps."""
    exchange = None
    for _ in range(_TURNS):
        constructor.fill()
        value = total_value(state, menu)
        if dual.bound - value <= _SMALL_GAP * abs(dual.bound):
            return
        exchange = Exchange(state, menu)
        if not exchange.run(constructor.regretful(), _LOOKS_PER_JOB * menu.num_jobs):
            return


def _smallest(menu: Menu) -> npt.NDArray[np.int64]:
    """Return the column with the fewest GPUs for each job, −1 where what it holds has no more."""
    gpus = np.where(menu.offered, menu.tables.num_gpus[None, :], 10**9)
    if not gpus.shape[1]:
        return np.full(menu.num_jobs, -1, dtype=np.int64)
    held = np.where(menu.waits, 10**8, menu.stay_gpus[: menu.num_jobs].sum(axis=1))
    return np.where(gpus.min(axis=1) < held, gpus.argmin(axis=1), -1)
