"""The restart penalty (Pollux, OSDI 2021, eq. 13-14): the factor on the speedup of a job that moves.

A move by requeue stops a job for its restart delay δ. In place, it trains on as before while its new
processes start, for δ' = `ProblemJob.in_place_delay_s`. Legend: J jobs, C columns of the tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import MovingRules, Objective, ProblemJob
from pollux_slurm.policy.objectives.moving_rules import hysteresis_factors

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# A job counts as at least so old. A training usually lasts for minutes, so a young one may move at once where
# that makes it clearly faster.
_LEAST_AGE_S = 300.0


def restart_penalty(job: ProblemJob, objective: Objective, moving: MovingRules | None = None) -> float:
    """Return f_j of a move by requeue: the factor on a job's speedup; 1 for a job without GPUs.

    "paper": T/(T + δ), with an age T of at least five minutes. That is eq. 13 without what the job has spent
    restarting so far: it is spent whether the job moves or not. "amortised": max(H − δ, 0)/H, with H the
    horizon over which the move must pay. Both are multiplied by 1 − hysteresis, but for a job that was never
    restarted: it leaves its submitted size as soon as that pays.
    """
    if not job.current:
        return 1.0
    keep = 1.0 if moving is None or not job.num_restarts else 1.0 - moving.hysteresis
    delay_s = job.restart_delay_s
    if objective.penalty == "amortised":
        return keep * max(objective.horizon_s - delay_s, 0.0) / objective.horizon_s
    age_s = max(job.age_s, _LEAST_AGE_S)
    return keep * age_s / (age_s + delay_s)


def in_place_penalties(
    jobs: Sequence[ProblemJob],
    objective: Objective,
    moving: MovingRules,
    *,
    speedup: FloatArray,
    current_speedup: FloatArray,
    num_gpus: IntArray,
) -> FloatArray:
    """Return f of moves in place to each column of `num_gpus` GPUs, (J, C), (C,).

    `speedup`, (J, C), is that there, `current_speedup`, (J,), that now.

    Until its new processes train, a job is as fast as before. So a move costs δ'·(1 − now/there) of training
    there, and nothing where that is slower. "paper": T/(T + cost). "amortised": max(H − cost, 0)/H. Both are
    multiplied by 1 − hysteresis, but for more GPUs: to grow stops nobody, and a job that gives GPUs away has
    a penalty of its own. Rows of jobs that cannot move so mean nothing.
    """
    delay_s = np.array([move_delay_s(job, in_place=True) if job.current else 0.0 for job in jobs])
    faster = np.maximum(speedup - current_speedup[:, None], 0.0)
    gained = np.divide(faster, speedup, out=np.zeros_like(speedup), where=speedup > 0)
    cost_s = delay_s[:, None] * gained
    own_gpus = np.array([job.current.num_gpus for job in jobs])[:, None]
    keep = np.where(num_gpus > own_gpus, 1.0, hysteresis_factors(jobs, moving)[:, None])
    if objective.penalty == "amortised":
        return np.asarray(keep * np.maximum(objective.horizon_s - cost_s, 0.0) / objective.horizon_s)
    age_s = np.array([max(job.age_s, _LEAST_AGE_S) for job in jobs])[:, None]
    return np.asarray(keep * age_s / (age_s + cost_s))


def paper_penalty(age_s: float, num_restarts: int, restart_delay_s: float, delay_s: float) -> float:
    """Return max(T − R·δ, 0)/(T + δ'): the part of its life that a job does not spend restarting (eq. 13).

    R·δ is what it has spent so far: R counts moves by requeue only, each of δ. δ' is the delay of the move in
    question, δ itself for a requeue.
    """
    left_s = age_s - num_restarts * restart_delay_s
    return max(left_s, 0.0) / (age_s + delay_s) if age_s + delay_s > 0 else 1.0


def can_move_in_place(job: ProblemJob) -> bool:
    """Return whether some changes of a job's allocation may be made in place."""
    return bool(job.wings) and bool(job.current) and job.in_place_delay_s is not None


def move_delay_s(job: ProblemJob, *, in_place: bool) -> float:
    """Return the delay of a job's next move, in seconds, by requeue or in place."""
    if in_place and job.in_place_delay_s is not None:
        return job.in_place_delay_s
    return job.restart_delay_s
