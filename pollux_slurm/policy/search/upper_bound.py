"""The upper bound of a decision: for all solutions that serve as many jobs as it does.

Waiting costs more than all other values together. Beside it, these may be lost to rounding, and a dual bound
with an error of 0.1 % is useless for them. So the number of waiting jobs is fixed, and the value of the other
jobs is bounded alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.pricing.dual_bound import solve_dual
from pollux_slurm.policy.pricing.relaxation import ROUNDING, Relaxation
from pollux_slurm.policy.problem.deterministic_rounding import above
from pollux_slurm.policy.problem.node_sets import Cluster
from pollux_slurm.policy.search.search import Solution

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# How often the waiting jobs are chosen again, and the prices without them.
_TURNS = 2
# A bound that is nearer to the solution's sum than this part of it is good enough.
_SMALL_GAP = 1e-4


def bound_for_number_served(
    candidates: Candidates, cluster: Cluster, solution: Solution, num_gpus: IntArray
) -> float:
    """Return an upper bound for solutions that serve as many jobs as this one, and keep as many promises.

    Its jobs get `num_gpus` (J,). What waiting and broken promises cost is not counted.
    """
    first = (num_gpus == 0) & (candidates.waiting_cost > 0)
    of_broken = candidates.cost_of_broken(num_gpus)
    cost = float(candidates.waiting_cost[first].sum() + of_broken.sum())
    # The searches treat solutions that differ by less as equal.
    total = min(solution.bound + (above(solution.value) - solution.value) + cost, candidates.most_worth)
    if first.any():
        worth = float(np.where(first, candidates.idle_worth, _values(candidates, solution) + of_broken).sum())
        enough = worth + _SMALL_GAP * abs(worth)
        if total > enough:
            served = float(of_broken[~first].sum())
            total = min(total, _bound_leaving(candidates, cluster, solution, first, enough - served) + served)
    return total


def _values(candidates: Candidates, solution: Solution) -> FloatArray:
    """Return what each job's candidate adds to the sum, (J,)."""
    placed = solution.state.placed[: candidates.num_jobs]
    return np.array([0.0 if one is None else one.candidate.value for one in placed], dtype=np.float64)


def _bound_leaving(
    candidates: Candidates, cluster: Cluster, solution: Solution, waiting: BoolArray, enough: float
) -> float:
    """Return the same at the solution's prices, then at those found with just these jobs left out.

    So nothing dwarfs the others. Then those are left out that lose least at these prices, until a bound is
    low `enough`.
    """
    relaxation = Relaxation(candidates, cluster)
    count = int(waiting.sum())
    least, _ = _leaving(candidates, relaxation, solution.dual.prices, count)
    for _ in range(_TURNS):
        if least <= enough:
            break
        prices = solve_dual(candidates, relaxation.without(waiting, candidates.idle_worth)).prices
        bound, others = _leaving(candidates, relaxation, prices, count)
        least = min(least, bound)
        if (others == waiting).all():
            break
        waiting = others
    return least


def _leaving(
    candidates: Candidates, relaxation: Relaxation, prices: FloatArray, num_waiting: int
) -> tuple[float, BoolArray]:
    """Return an upper bound for solutions that leave so many jobs waiting, and which jobs wait then, (J,).

    What their waiting costs is not counted. At these prices, those wait that lose least by it; only jobs
    that come before all else (`Candidates.waiting_cost`) are counted.
    """
    reduced = relaxation.reduced(prices)
    first = candidates.waiting_cost > 0
    without = np.full(len(first), -np.inf)
    new = first & candidates.waits
    without[new] = candidates.stay_worth[new]
    reduced[new, -1] = -np.inf
    if candidates.pause_column is not None:
        running = first & ~candidates.waits
        without[running] = (reduced[:, candidates.pause_column] + candidates.waiting_cost)[running]
        reduced[running, candidates.pause_column] = -np.inf
    served = reduced.max(axis=1)
    with np.errstate(invalid="ignore"):
        loss = np.where(first, served - without, np.inf)
    waiting = np.zeros(len(first), dtype=bool)
    waiting[np.argsort(loss, kind="stable")[:num_waiting]] = True
    won = np.where(waiting, without, served)
    paid = prices * relaxation.budget
    size = float(np.abs(won).sum() + np.abs(paid).sum())
    return float(won.sum() + paid.sum()) + ROUNDING * size, waiting
