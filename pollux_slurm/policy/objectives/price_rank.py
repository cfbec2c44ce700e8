"""The objective `price-rank`: shortest average completion time, by what jobs declare of their length.

Were no job to come, and speedups s_i and remaining one-GPU times T_i known, then the allocations with the
least total completion time maximise Σ w_i·s_i at any time, for constant weights w_i (the co-states of the
fluid problem; Pontryagin's principle). When a job ends, one job less waits, so what is maximised is less by
one: with S_i the i jobs that end last, and W(S) the most of Σ_{j ∈ S} w_j·s_j that G GPUs allow,

    W(S_i) = i.

That tells the weights one by one, the job that ends last first: with the duality of W, for prices μ of a GPU,

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
    horizon_s,
    hysteresis_factors,
    job_weights,
    prediction_discount,
    restart_delays_s,
    speedup_of_one_gpu,
)
from pollux_slurm.policy.objectives.multi_node_cap import capped_speedup
from pollux_slurm.policy.objectives.packing_preference import packing_columns
from pollux_slurm.policy.problem.allocation_shapes import gpu_bounds
from pollux_slurm.policy.problem.deterministic_rounding import round_to_bits
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Constants chosen on generated workloads (docs/evaluation.md). The exponent; the time over which a move must
# pay; GPUs are scarcer by a factor than the jobs at hand tell, for others will come; remaining times are
# guesses, and the shorter one is the surer; the most that a weight can be, over the median of all.
_EXPONENT = 0.9
_HORIZON_S = 270.0
_TO_COME = 2.0
_LENGTH_EXPONENT = -0.1
MAX_DECLARED_WEIGHT = 4.0
# Prices of a GPU that are looked at, on a scale of sizes.
_PRICES = 96


def price_rank(problem: Problem, jobs: Sequence[ProblemJob], tables: SpeedupTables) -> Scores:
    """Rate by co-state weights × T^−0.1, p = 0.9.

    T = progress/g(1)·(1 − φ)/φ is the remaining one-GPU time, φ the part of the epochs done; without a
    declaration, as long as it has run already (φ = ½). f = 1 − δ/min(H, T/s + δ) on change, with H = 270 s
    for δ ≤ 30 s, and in proportion to √δ beyond, for a job that resumes after a pause, too. Only shares that
    pack well are used: parts of a node of which several make a whole one, then whole nodes, and the bounds
    that jobs name themselves. Weights count no GPUs beyond these bounds. Speedups on several nodes are
    bounded for who was never on several (`capped_speedup`).
    No weight is more than `MAX_DECLARED_WEIGHT` times the median of all, so that little is won by a lie.
    """
    claims = [
        declared_remaining_s(job, alone) for job, alone in zip(jobs, tables.alone.tolist(), strict=True)
    ]
    unclaimed = np.array(
        [max(attained_work_s(job, tables, row), 1.0) for row, job in enumerate(jobs)], dtype=np.float64
    )
    claimed = np.array([claim is not None for claim in claims], dtype=bool)
    remaining = np.where(claimed, [max(claim or 1.0, 1.0) for claim in claims], unclaimed)
    unit = speedup_of_one_gpu(tables)
    usable = packing_columns(problem, jobs, tables)
    over_one = capped_speedup(jobs, tables) / unit[:, None]
    total = sum(node.num_gpus for node in problem.nodes)

    fewest, most = gpu_bounds(jobs)
    possible = np.where(usable & (tables.num_gpus >= fewest) & (tables.num_gpus <= most), over_one, 0.0)
    costate = CoStates(remaining, possible, tables.num_gpus, max(total, 1) / _TO_COME)
    weight = remaining**_LENGTH_EXPONENT * costate.weight
    high = MAX_DECLARED_WEIGHT * float(np.median(weight)) if len(jobs) else 1.0
    delay = restart_delays_s(jobs, resuming=True)[:, None]
    after = remaining[:, None] / np.maximum(over_one, 1e-12)
    horizon = np.minimum(horizon_s(delay, _HORIZON_S), after + delay)
    keep = hysteresis_factors(problem, jobs)[:, None] * prediction_discount(jobs, tables)
    return Scores(
        exponent=_EXPONENT,
        floor=problem.objective.floor,
        scale=1.0,
        weight=np.minimum(weight, high) * job_weights(jobs),
        speedup=over_one,
        current_speedup=current_speedups(jobs, tables) / unit,
        penalty=keep * np.maximum(1.0 - delay / np.maximum(horizon, 1e-9), 0.0),
        serves_all=True,
        units=1.0 / unit,
        declared_gain=partial(_gain, costate, weight, high, claimed, unclaimed),
        usable=usable,
    )


def _gain(
    costate: CoStates, weight: FloatArray, high: float, claimed: BoolArray, unclaimed: FloatArray
) -> FloatArray:
    """Return by what factor each job's declaration has changed its weight, (J,); NaN where it has none."""
    gain = np.full(len(weight), np.nan)
    for row in np.flatnonzero(claimed).tolist():
        silent = unclaimed[row] ** _LENGTH_EXPONENT * costate.weight_if(row, float(unclaimed[row]))
        gain[row] = min(weight[row], high) / min(silent, high)
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
        self._prices = np.geomspace(0.01 / total_gpus, max(count, 1) / total_gpus, _PRICES)
        self._cost = self._prices[:, None] * num_gpus.astype(np.float64)  # of each column, (M, C)
        self._before = np.empty((count + 1, _PRICES))  # F_0, F_1, ...
        self._before[0] = self._prices * total_gpus
        self._surplus = np.zeros((count, _PRICES))  # what each job adds to F
        self.weight: FloatArray = np.ones(count)
        for place, job in enumerate(self._order.tolist()):
            self.weight[job] = weight = self._weight(job, place + 1 - self._before[place])
            # A column that it may not have brings nothing, and costs something.
            self._surplus[job] = (weight * speedup[job] - self._cost).max(axis=1, initial=0.0)
            self._before[place + 1] = self._before[place] + self._surplus[job]
        self._share_among_equals(remaining)

    def weight_if(self, job: int, remaining: float) -> float:
        """Return the weight of a job, were its remaining time another and all others' as they are."""
        longer = int(np.searchsorted(self._descending, -remaining))
        place = int(np.flatnonzero(self._order == job)[0])
        others = self._before[longer]
        if place < longer:  # it is one of those that now end later
            others = others - self._surplus[job]
        return self._weight(job, 1.0 + others.min() - others)

    def _weight(self, job: int, missing: FloatArray) -> float:
        """Return the weight with which a job makes up for what is missing, (M,), at the best price."""
        usable = np.flatnonzero(self._speedup[job] > 0)
        if not len(usable):
            return 1.0
        cost = missing[:, None] + self._cost[:, usable]
        return max(float((cost / self._speedup[job, usable]).min(axis=1).max()), 1e-9)

    def _share_among_equals(self, remaining: FloatArray) -> None:
        """Give jobs that are equal in everything the mean of their weights."""
        equals: dict[tuple[float, bytes], list[int]] = {}
        # Equal speeds over different fair shares are equal but for their last bits.
        speedup = round_to_bits(self._speedup)
        for job, left in enumerate(remaining.tolist()):
            equals.setdefault((left, speedup[job].tobytes()), []).append(job)
        for group in equals.values():
            if len(group) > 1:
                self.weight[group] = self.weight[group].mean()
