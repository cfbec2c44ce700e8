"""The restart penalty (Pollux, OSDI 2021, eq. 13-14): the factor on the speedup of a job that moves.

A move by requeue stops a job for its restart delay δ. In place, it trains on as before while its new
processes start, for δ' = `ProblemJob.in_place_delay_s`. Legend: J jobs, C columns of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import MovingRules, Objective, ProblemJob
from pollux_slurm.policy.objectives.moving_rules import hysteresis_factors

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# A move is expected to last so long at least: that of a young job, which may move at once where that makes it
# clearly faster, and that of one which moved often while it was young.
_LEAST_S = 300.0
# The restart delay for which an objective states its horizon.
_HORIZON_DELAY_S = 30.0


def restart_penalties(
    jobs: Sequence[ProblemJob], objective: Objective, moving: MovingRules, left_s: FloatArray
) -> FloatArray:
    """Return f of moves by requeue, (J, C): the factor on a job's speedup; 1 for a job without GPUs.

    `left_s`, (J, C), is what a job still trains in each column (`job_values.seconds_left`).

    "paper": eq. 13, at least 300/(300 + δ) of a move that lasts for five minutes. A job that moved in its
    first minutes would else stay for hours where these led it. "amortised": max(H − δ, 0)/H, with H the
    horizon over which the move must pay. A job that ends before has less (`kept_until_end`). All is
    multiplied by 1 − hysteresis, but for a job that was never restarted: it leaves its submitted size as soon
    as that pays.
    """
    restarted = np.array([bool(job.num_restarts) for job in jobs], dtype=bool)
    keep = np.where(restarted, hysteresis_factors(jobs, moving), 1.0)
    return keep[:, None] * _kept_part(jobs, objective, restart_delays_s(jobs)[:, None], left_s)


def in_place_penalties(
    jobs: Sequence[ProblemJob],
    objective: Objective,
    moving: MovingRules,
    *,
    speedup: FloatArray,
    current_speedup: FloatArray,
    num_gpus: IntArray,
    left_s: FloatArray,
) -> FloatArray:
    """Return f of moves in place to each column of `num_gpus` GPUs, (J, C), (C,).

    `speedup`, (J, C), is that there, `current_speedup`, (J,), that now, `left_s` as in `restart_penalties`.

    Until its new processes train, a job is as fast as before. So a move costs δ'·(1 − now/there) of training
    there, and nothing where that is slower; it counts as δ does in `restart_penalties`. f is multiplied by
    1 − hysteresis, but for more GPUs: to grow stops nobody, and a job that gives GPUs away has a penalty of
    its own. Rows of jobs that cannot move so mean nothing.
    """
    faster = np.maximum(speedup - current_speedup[:, None], 0.0)
    gained = np.divide(faster, speedup, out=np.zeros_like(speedup), where=speedup > 0)
    cost_s = restart_delays_s(jobs, in_place=True)[:, None] * gained
    own_gpus = np.array([job.current.num_gpus for job in jobs])[:, None]
    keep = np.where(num_gpus > own_gpus, 1.0, hysteresis_factors(jobs, moving)[:, None])
    return np.asarray(keep * _kept_part(jobs, objective, cost_s, left_s))


def _kept_part(
    jobs: Sequence[ProblemJob], objective: Objective, cost_s: FloatArray, left_s: FloatArray
) -> FloatArray:
    """Return the part of its time that a job trains where a move costs `cost_s`, (J, C) or (J, 1)."""
    if objective.penalty == "amortised":
        kept = np.maximum(objective.horizon_s - cost_s, 0.0) / objective.horizon_s
        return np.minimum(kept, kept_until_end(left_s, cost_s))
    age_s = np.array([job.age_s for job in jobs], dtype=np.float64)[:, None]
    spent_s = np.array([job.num_restarts * job.restart_delay_s for job in jobs], dtype=np.float64)[:, None]
    kept = np.maximum(paper_penalty(age_s, spent_s, cost_s), _LEAST_S / (_LEAST_S + cost_s))
    return np.minimum(kept, kept_until_end(left_s, cost_s))


def kept_until_end(left_s: FloatArray, cost_s: FloatArray) -> FloatArray:
    """Return left/(left + cost): of the time until its end, the part that a job trains after a move.

    1 where it is not known how long that is: `left_s` is infinite. What a job tells of its length can gain
    it no move.
    """
    return np.asarray(1.0 - cost_s / np.maximum(left_s + cost_s, 1e-9))


def paper_penalty(age_s: FloatArray, spent_s: FloatArray, cost_s: FloatArray) -> FloatArray:
    """Return max(T − Rδ, 0)/(T + cost): the part of its life that a job does not spend restarting (eq. 13).

    `age_s` T, `spent_s` Rδ, what its restarts have cost so far, and `cost_s` of the next move are of one
    shape, or broadcast.
    """
    left_s, life_s = np.broadcast_arrays(np.maximum(age_s - spent_s, 0.0), age_s + cost_s)
    return np.asarray(np.divide(left_s, life_s, out=np.ones(life_s.shape), where=life_s > 0))


def can_move_in_place(job: ProblemJob) -> bool:
    """Return whether some changes of a job's allocation may be made in place."""
    return bool(job.wings) and bool(job.current) and job.in_place_delay_s is not None


def move_delay_s(job: ProblemJob, *, in_place: bool) -> float:
    """Return the delay of a job's next move, in seconds, by requeue or in place."""
    if in_place and job.in_place_delay_s is not None:
        return job.in_place_delay_s
    return job.restart_delay_s


def penalty_of_ways(
    jobs: Sequence[ProblemJob], penalty: Callable[[bool], FloatArray]
) -> tuple[FloatArray, FloatArray | None]:
    """Return `penalty(False)`, that of changes by requeue, and `penalty(True)`, that of changes in place.

    The second is None where no job can move in place.
    """
    return penalty(False), penalty(True) if any(map(can_move_in_place, jobs)) else None


def restart_delays_s(
    jobs: Sequence[ProblemJob], *, resuming: bool = False, in_place: bool = False
) -> FloatArray:
    """Return the delay that a change costs each job, in seconds; 0 for a job without GPUs.

    With `resuming`, a waiting job that ran before has its delay, too. With `in_place`, jobs that can move so
    have the delay of that.
    """
    found = [
        move_delay_s(job, in_place=in_place) if job.current or (resuming and job.num_restarts > 0) else 0.0
        for job in jobs
    ]
    return np.array(found, dtype=np.float64)


def kept_of_horizon(delay: FloatArray, usual_s: float, jobs: Sequence[ProblemJob]) -> FloatArray:
    """Return max(1 − δ/H, 0), (J,): what a move of `delay` δ (J,) leaves of the horizon H (`horizon_s`)."""
    return np.asarray(1.0 - delay / np.maximum(horizon_s(delay, usual_s, jobs), delay))


def horizon_s(delay: FloatArray, usual_s: float, jobs: Sequence[ProblemJob]) -> FloatArray:
    """Return the horizon (J,) over which a move of `delay` (J,) must pay, in seconds.

    It is `usual_s` up to a delay δ of 30 s, and grows with √δ above. That alone would keep a job for good
    where no larger size is worth so much. So it goes on to grow with the part of its life that the job has
    not spent restarting: after as long it has lost as much as a move costs, as one who rents until the rent
    has reached the price. It never grows beyond δ/30 s times `usual_s`, with which f is that of 30 s.
    """
    longer = np.maximum(delay / _HORIZON_DELAY_S, 1.0)
    trained_s = [job.age_s - job.num_restarts * job.restart_delay_s for job in jobs]
    return usual_s * np.clip(np.array(trained_s, dtype=np.float64) / usual_s, np.sqrt(longer), longer)
