"""The objective `price-rank`: short average completion times, by the lengths that are known of jobs.

Suppose that no further job arrives, and that speedups s_i and remaining one-GPU times T_i are known. Then the
allocations with the least total completion time maximise Σ w_i·s_i at any time, for constant weights w_i.
(These are the co-states of the fluid problem, by Pontryagin's principle.) When a job ends, one job less
waits, so the maximum falls by one. With S_i the i jobs that end last, and W(S) the maximum of
Σ_{j ∈ S} w_j·s_j on G GPUs,

    W(S_i) = i.

This gives the weights one by one, from the job that ends last on. By the duality of W, for prices μ of a GPU,

    F_i(μ) = μ·G + Σ_{j ≤ i} max_K (w_j·s_j(K) − μ·K),   W(S_i) = min_μ F_i(μ),
    w_i = max_μ min_K (i − F_{i−1}(μ) + μ·K) / s_i(K).

For s_i(K) = K^p these are the weights of heSRPT (Berg, Vesilind, Harchol-Balter, 2020).
Legend: J jobs, C columns of the tables, M prices, G GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Problem, ProblemJob
from pollux_slurm.policy.objectives.job_values import (
    Scores,
    attained_work_s,
    current_speedups,
    declared_remaining_s,
    expected_remaining_s,
    job_weights,
    prediction_discount,
    speedup_of_one_gpu,
)
from pollux_slurm.policy.objectives.moving_rules import hysteresis_factors
from pollux_slurm.policy.objectives.multi_node_cap import capped_speedup
from pollux_slurm.policy.objectives.packing_preference import packing_columns
from pollux_slurm.policy.objectives.restart_penalty import (
    kept_of_horizon,
    kept_until_end,
    penalty_of_ways,
    restart_delays_s,
)
from pollux_slurm.policy.problem.allocation_shapes import gpu_bounds
from pollux_slurm.policy.problem.deterministic_rounding import round_to_bits
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Constants chosen on generated workloads (docs/evaluation.md).
_EXPONENT = 0.9
# The time over which a move must pay.
_HORIZON_S = 270.0
# More jobs will arrive: GPUs count as scarcer by this factor than the present jobs make them.
_SCARCITY = 2.0
# The largest weight over the median weight of all jobs, and the median over the least.
MAX_WEIGHT_RATIO = 4.0
# The levels of remaining time of jobs whose length is unknown.
_FIRST_LEVEL_S, _LEVEL_GROWTH = 1000.0, 4.0
# How many prices of a GPU are tried, spaced geometrically.
_NUM_PRICES = 96


def price_rank(problem: Problem, jobs: Sequence[ProblemJob], tables: SpeedupTables) -> Scores:
    """Return the terms of `price-rank`: p = 0.9, weights are co-states.

    T = progress/g(1)·(1 − φ)/φ is the remaining one-GPU time, where φ is the part of the epochs that is done.
    Without a declaration, T follows from the length of the job's kind, and without that from the work that it
    has done (`_guessed_remaining_s`). On change, f = 1 − δ/min(H, T/s + δ) with the horizon H = 270 s, longer
    above δ = 30 s (`horizon_s`). A job that resumes after a pause has this f, too. Only configurations that
    pack well are used, and weights count no GPUs beyond a job's own bounds. Jobs that never ran on several
    nodes have the multi-node cap. No weight is above `MAX_WEIGHT_RATIO` times the median, so a false
    declaration gains little, nor below the median over it, so no job waits for all others.

    Args:
        problem: The problem, for its nodes and moving rules.
        jobs: The J jobs that take part.
        tables: Their goodput and speedup, (J, C).

    Examples:
        >>> price_rank(problem, jobs, tables).exponent
        0.9
    """
    alone = list(zip(jobs, tables.one_gpu_goodput.tolist(), strict=True))
    declares = np.array(
        [declared_remaining_s(job, goodput) is not None for job, goodput in alone], dtype=bool
    )
    undeclared = np.array(
        [_guessed_remaining_s(attained_work_s(job, tables, row)) for row, job in enumerate(jobs)],
        dtype=np.float64,
    )
    expected = [expected_remaining_s(job, goodput) for job, goodput in alone]
    remaining = np.array(
        [guess if left is None else max(left, 1.0) for left, guess in zip(expected, undeclared, strict=True)],
        dtype=np.float64,
    )
    unit = speedup_of_one_gpu(tables)
    usable = packing_columns(problem, jobs, tables)
    over_one = capped_speedup(jobs, tables) / unit[:, None]
    total = sum(node.num_gpus for node in problem.nodes)

    fewest, most = gpu_bounds(jobs)
    possible = np.where(usable & (tables.num_gpus >= fewest) & (tables.num_gpus <= most), over_one, 0.0)
    costate = CoStates(remaining, possible, tables.num_gpus, max(total, 1) / _SCARCITY)
    weight = costate.weight
    median = float(np.median(weight)) if len(jobs) else 1.0
    after = remaining[:, None] / np.maximum(over_one, 1e-12)
    keep = hysteresis_factors(jobs, problem.moving)[:, None] * prediction_discount(jobs, tables)

    def penalty(in_place: bool) -> FloatArray:
        delays = restart_delays_s(jobs, resuming=True, in_place=in_place)
        move = kept_of_horizon(delays, _HORIZON_S, jobs)[:, None]
        found: FloatArray = keep * np.minimum(move, kept_until_end(after, delays[:, None]))
        return found

    by_requeue, in_place_penalty = penalty_of_ways(jobs, penalty)
    return Scores(
        exponent=_EXPONENT,
        floor=problem.objective.floor,
        scale=1.0,
        weight=_bounded(weight, median) * job_weights(jobs),
        speedup=over_one,
        current_speedup=current_speedups(jobs, tables) / unit,
        penalty=by_requeue,
        serves_all=True,
        units=1.0 / unit,
        declared_gain=partial(_declared_gain, costate, median, declares, undeclared),
        usable=usable,
        in_place_penalty=in_place_penalty,
    )


def _guessed_remaining_s(work_s: float) -> float:
    """Return what a job of unknown length may still need on one GPU: as much as it has had, or so.

    It is rounded up to 1,000 s times a power of four. So jobs of a similar age count the same, and take no
    GPUs of each other in turn.
    """
    level = _FIRST_LEVEL_S
    while level < work_s:
        level *= _LEVEL_GROWTH
    return level


def _bounded(weight: npt.ArrayLike, median: float) -> FloatArray:
    bounded: FloatArray = np.clip(weight, median / MAX_WEIGHT_RATIO, median * MAX_WEIGHT_RATIO)
    return bounded


def _declared_gain(
    costate: CoStates, median: float, declares: BoolArray, undeclared: FloatArray
) -> FloatArray:
    """Return the factor by which each job's declaration changes its weight, (J,); NaN without one."""
    gain = np.full(len(costate.weight), np.nan)
    for row in np.flatnonzero(declares).tolist():
        without = costate.weight_if(row, float(undeclared[row]))
        gain[row] = _bounded(costate.weight[row], median) / _bounded(without, median)
    return gain


class CoStates:
    """The weights `weight` (J,) of jobs with `remaining` times (J,) and speedups over one GPU (J, C)."""

    def __init__(
        self, remaining: FloatArray, speedup: FloatArray, num_gpus: IntArray, total_gpus: float
    ) -> None:
        count = len(remaining)
        self._speedup = speedup
        self._order = np.lexsort((np.arange(count), -remaining))
        self._descending = -remaining[self._order]
        self._prices = np.geomspace(0.01 / total_gpus, max(count, 1) / total_gpus, _NUM_PRICES)
        self._cost = self._prices[:, None] * num_gpus.astype(np.float64)  # of each column, (M, C)
        self._before = np.empty((count + 1, _NUM_PRICES))  # F_0, F_1, ...
        self._before[0] = self._prices * total_gpus
        self._surplus = np.zeros((count, _NUM_PRICES))  # what each job adds to F
        self.weight: FloatArray = np.ones(count)
        for place, job in enumerate(self._order.tolist()):
            self.weight[job] = weight = self._weight(job, place + 1 - self._before[place])
            # A column that it may not have has speedup 0 and a cost: it is never the best.
            self._surplus[job] = (weight * speedup[job] - self._cost).max(axis=1, initial=0.0)
            self._before[place + 1] = self._before[place] + self._surplus[job]
        self._share_among_equals(remaining)

    def weight_if(self, job: int, remaining: float) -> float:
        """Return the weight of a job if its remaining time were `remaining`, and the others' as they are."""
        longer = int(np.searchsorted(self._descending, -remaining))
        place = int(np.flatnonzero(self._order == job)[0])
        others = self._before[longer]
        if place < longer:  # the job itself is among those that end later
            others = others - self._surplus[job]
        return self._weight(job, 1.0 + others.min() - others)

    def _weight(self, job: int, missing: FloatArray) -> float:
        """Return the least weight at which a job's surplus is at least `missing`, (M,), at every price."""
        usable = np.flatnonzero(self._speedup[job] > 0)
        if not len(usable):
            return 1.0
        cost = missing[:, None] + self._cost[:, usable]
        return max(float((cost / self._speedup[job, usable]).min(axis=1).max()), 1e-9)

    def _share_among_equals(self, remaining: FloatArray) -> None:
        """Give equal jobs the mean of their weights."""
        equals: dict[tuple[float, bytes], list[int]] = {}
        # Speedups over different fair shares may differ in their last bits only.
        speedup = round_to_bits(self._speedup)
        for job, left in enumerate(remaining.tolist()):
            equals.setdefault((left, speedup[job].tobytes()), []).append(job)
        for group in equals.values():
            if len(group) > 1:
                self.weight[group] = self.weight[group].mean()
