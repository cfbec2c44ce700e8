"""Objectives as parts that plug in: each says what configurations, staying and nothing are worth to a job.

All are generalized means over x = f·SPEEDUP + floor with an exponent and a weight a job, so that one solver
serves them all. Legend: J jobs, C columns of the tables, G GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Problem, ProblemJob
from pollux_slurm.policy.objective import mean, mean_of_sum, paper_penalty, restart_penalty
from pollux_slurm.policy.tables import Tables

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

OSDI21_DELAY_S = 30.0
OSDI21_FLOOR = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """What an objective makes of a problem.

    A job whose allocation changes counts x = `scale`·f·SPEEDUP + `floor`, one that stays the same without f,
    one with nothing x = `floor`. `speedup` (J, C) and `held` (J,) are SPEEDUP as the objective sees
    it, `penalty` (J,) or (J, C) is f, `weight` (J,) enters the mean. `serves_all` says that jobs which wait
    come before all else. `declared_gain` (J,) is the factor by which what a job declares has changed its
    weight, NaN where it declares nothing that counts.
    """

    exponent: float
    floor: float
    scale: float
    weight: FloatArray
    speedup: FloatArray
    held: FloatArray
    penalty: FloatArray
    serves_all: bool
    units: FloatArray | None = None
    declared_gain: FloatArray | None = None

    def unit(self, job: int) -> float:
        """Return SPEEDUP as the objective sees it over SPEEDUP as the tables have it."""
        return 1.0 if self.units is None else float(self.units[job])

    def fitness(self, penalised: Sequence[float]) -> float:
        """Return the mean for what each job gets, as f·SPEEDUP."""
        x = self.scale * np.asarray(penalised, dtype=np.float64) + self.floor
        return mean(self.exponent, x, self.weight)

    def fitness_of_sum(self, total: float) -> float:
        """Return the fitness that belongs to a sum of values."""
        weight = float(self.weight.sum())
        return mean_of_sum(self.exponent, total, weight) if weight > 0 else 0.0


Rating = Callable[[Problem, Sequence[ProblemJob], Tables], Scores]


def generalized_mean(problem: Problem, jobs: Sequence[ProblemJob], tables: Tables) -> Scores:
    """Rate by the paper's objective with its quirks mended: the default."""
    return Scores(
        exponent=problem.objective.exponent,
        floor=problem.objective.floor,
        scale=1.0,
        weight=_weights(jobs),
        speedup=tables.speedup,
        held=_held(jobs, tables),
        penalty=_penalties(problem, jobs),
        serves_all=True,
    )


def osdi21(problem: Problem, jobs: Sequence[ProblemJob], tables: Tables) -> Scores:
    """Rate as the paper's artifact does, to the letter.

    p = −1, x = f·SPEEDUP·nodes/G + 1e-3, δ = 30 s for all, and f also from an empty allocation. No weights.
    """
    total = sum(node.num_gpus for node in problem.nodes)
    with_gpus = sum(node.num_gpus > 0 for node in problem.nodes)
    penalty = [paper_penalty(job.age_s, job.num_restarts, OSDI21_DELAY_S) for job in jobs]
    return Scores(
        exponent=-1.0,
        floor=OSDI21_FLOOR,
        scale=with_gpus / total if total else 1.0,
        weight=np.ones(len(jobs)),
        speedup=tables.speedup,
        held=_held(jobs, tables),
        penalty=np.array(penalty, dtype=np.float64),
        serves_all=False,
    )


def attained_work(problem: Problem, jobs: Sequence[ProblemJob], tables: Tables) -> Scores:
    """Rate by total speedup over one GPU, bent by p = 0.7, with less weight for jobs that had much work done.

    Nothing needs to be declared: with work W = progress/g(1) in one-GPU seconds, w = max(W, 60 s)^−0.25.
    f = 1 − δ/H on change, H as for `price_rank`.
    """
    work = np.array([_attained_s(job, tables, row) for row, job in enumerate(jobs)], dtype=np.float64)
    weight = _weights(jobs) * np.maximum(work, 60.0) ** -0.25
    unit, delay, keep = _one_gpu(tables), _delays(jobs), _hysteresis(problem, jobs)
    return Scores(
        exponent=0.7,
        floor=problem.objective.floor,
        scale=1.0,
        weight=weight,
        speedup=tables.speedup / unit[:, None],
        held=_held(jobs, tables) / unit,
        penalty=keep * (1.0 - delay / np.maximum(_horizon_s(delay), delay)),
        serves_all=True,
        units=1.0 / unit,
    )


# Constants chosen on generated workloads (docs/evaluation.md): the exponent of `price_rank`; the time over
# which a move must pay, for a restart of half a minute, and longer for longer ones; the most that a weight
# can be, over the median of all.
_PRICE_RANK_EXPONENT = 0.97
_HORIZON_S, _HORIZON_DELAY_S = 250.0, 30.0
MAX_DECLARED_WEIGHT = 4.0


def price_rank(problem: Problem, jobs: Sequence[ProblemJob], tables: Tables) -> Scores:
    """Rate by the price of GPUs in waiting jobs, ranked by remaining time, p = 0.97.

    T = progress/g(1)·(1 − φ)/φ is the remaining one-GPU time, φ the part of the epochs done; without a
    declaration, as long as it has run already (φ = ½). With i the rank by T (1: largest; equals share the
    mean of theirs), λ = 2i/G and w = T^−0.1·min_K (1 + λ·K)/s(K), for s the speedup over one GPU.
    f = 1 − δ/min(H, T/s + δ) on change, with H = 250 s for δ ≤ 30 s, and in proportion to √δ beyond.
    No w is more than `MAX_DECLARED_WEIGHT` times the median of all, so that little is won by a lie.
    """
    num_jobs = len(jobs)
    total = max(sum(node.num_gpus for node in problem.nodes), 1)
    claims = [remaining_s(job, alone) for job, alone in zip(jobs, tables.alone.tolist(), strict=True)]
    unclaimed = np.array(
        [max(_attained_s(job, tables, row), 1.0) for row, job in enumerate(jobs)], dtype=np.float64
    )
    remaining = np.array(
        [
            other if claim is None else max(claim, 1.0)
            for claim, other in zip(claims, unclaimed.tolist(), strict=True)
        ]
    )
    unit = _one_gpu(tables)
    over_one = tables.speedup / unit[:, None]
    weight = _ranked_weight(remaining, _ranks(remaining, remaining), over_one, tables.num_gpus, total)
    middle = float(np.median(weight)) if num_jobs else 1.0
    high = middle * MAX_DECLARED_WEIGHT
    # What a job would weigh if it alone declared nothing.
    silent = _ranked_weight(unclaimed, _ranks(remaining, unclaimed), over_one, tables.num_gpus, total)
    gain = np.minimum(weight, high) / np.minimum(silent, high)
    gain = np.where([claim is not None for claim in claims], gain, np.nan)
    weight = np.minimum(weight, high) * _weights(jobs)
    delay = _delays(jobs)[:, None]
    after = remaining[:, None] / np.maximum(over_one, 1e-12)
    horizon = np.minimum(_horizon_s(delay), after + delay)
    keep = _hysteresis(problem, jobs)[:, None]
    penalty = keep * np.maximum(1.0 - delay / np.maximum(horizon, 1e-9), 0.0)
    return Scores(
        exponent=_PRICE_RANK_EXPONENT,
        floor=problem.objective.floor,
        scale=1.0,
        weight=weight,
        speedup=over_one,
        held=_held(jobs, tables) / unit,
        penalty=penalty,
        serves_all=True,
        units=1.0 / unit,
        declared_gain=gain,
    )


def _one_gpu(tables: Tables) -> FloatArray:
    """Return SPEEDUP of one GPU, (J,): dividing by it makes speedups ones over one GPU.

    Where one GPU allows no batch, it is 1: speedups stay those over the fair share.
    """
    known = (tables.base > 0) & (tables.alone > 0)
    return np.divide(tables.alone, tables.base, out=np.ones(len(tables.alone)), where=known)


def _delays(jobs: Sequence[ProblemJob]) -> FloatArray:
    """Return what a change costs each job, in seconds: nothing where it has no GPUs."""
    return np.array([job.restart_delay_s if job.current else 0.0 for job in jobs], dtype=np.float64)


def _horizon_s(delay: FloatArray) -> FloatArray:
    """Return the time over which a move with this delay must pay."""
    return _HORIZON_S * np.sqrt(np.maximum(delay / _HORIZON_DELAY_S, 1.0))


def _hysteresis(problem: Problem, jobs: Sequence[ProblemJob]) -> FloatArray:
    return np.array(
        [1.0 - problem.moving.hysteresis if job.current else 1.0 for job in jobs], dtype=np.float64
    )


def _ranks(remaining: FloatArray, instead: FloatArray) -> FloatArray:
    """Return the rank (1: largest) of each `instead` among the others' `remaining`; equals share one."""
    order = np.sort(remaining)
    first, behind = (np.searchsorted(order, instead, side=side) for side in ("left", "right"))
    larger = len(order) - behind - (remaining > instead)
    equal = behind - first - (remaining == instead)
    return np.asarray(larger + equal / 2.0 + 1.0)


def _ranked_weight(
    remaining: FloatArray, rank: FloatArray, over_one: FloatArray, num_gpus: IntArray, total: int
) -> FloatArray:
    """Return T^−0.1·min_K (1 + λ·K)/s(K) for jobs of remaining time T and rank i, λ = 2i/G."""
    price = 2.0 * rank / total
    worst = np.where(over_one > 0, (1 + price[:, None] * num_gpus) / np.maximum(over_one, 1e-12), np.inf)
    least = worst.min(axis=1, initial=np.inf)
    return np.asarray(remaining**-0.1 * np.where(np.isfinite(least), least, 1.0))


OBJECTIVES: Mapping[str, Rating] = MappingProxyType(
    {
        "generalized-mean": generalized_mean,
        "osdi21": osdi21,
        "price-rank": price_rank,
        "attained-work": attained_work,
    }
)


def remaining_s(job: ProblemJob, alone: float) -> float | None:
    """Return a job's remaining time on one GPU by its declaration, None where it declares nothing usable.

    A job that has done all that it declared, and goes on, has declared nothing.
    """
    done, declared, progress = job.epochs_done, job.epochs_declared, job.progress
    if done is None or declared is None or progress is None or not 0 < done < declared or alone <= 0:
        return None
    return progress / alone * (declared - done) / done


def _attained_s(job: ProblemJob, tables: Tables, row: int) -> float:
    """Return the work done so far in seconds of one GPU, at most its age on all that it may have held."""
    alone = float(tables.alone[row])
    if alone <= 0 or job.progress is None:
        return job.age_s
    return job.progress / alone


def _weights(jobs: Sequence[ProblemJob]) -> FloatArray:
    return np.array([job.weight for job in jobs], dtype=np.float64)


def _penalties(problem: Problem, jobs: Sequence[ProblemJob]) -> FloatArray:
    found = [restart_penalty(job, problem.objective, problem.moving) for job in jobs]
    return np.array(found, dtype=np.float64)


def _held(jobs: Sequence[ProblemJob], tables: Tables) -> FloatArray:
    """Return the speedup of what each job holds; what breaks the job's own limits is worth nothing."""
    within = [
        job.pinned or job.min_gpus <= job.current.num_gpus <= (job.max_gpus or job.current.num_gpus)
        for job in jobs
    ]
    return np.where(within, tables.held, 0.0)
