"""The restart penalty (Pollux, OSDI 2021, eq. 13-14): the factor on the speedup of a job that moves.

A move in place has a delay of its own, `ProblemJob.in_place_delay_s`.
"""

from __future__ import annotations

from pollux_slurm.model import MovingRules, Objective, ProblemJob

# A job counts as at least so old. A training usually lasts for minutes, so a young one may move at once where
# that makes it clearly faster.
_LEAST_AGE_S = 120.0


def restart_penalty(
    job: ProblemJob, objective: Objective, moving: MovingRules | None = None, *, in_place: bool = False
) -> float:
    """Return f_j, the factor on a job's speedup if its allocation changes; 1 for a job without GPUs.

    "paper" (eq. 13): see `paper_penalty`, with an age of at least two minutes. "amortised": max(H − δ, 0)/H,
    with δ the delay of the move and H the horizon over which it must pay. Both are multiplied by
    1 − hysteresis. A move is by requeue, or `in_place` of a job that can be moved so. What the job has spent
    restarting does not count for the latter, which stops nothing: a job that was requeued often could
    otherwise take no idle GPUs until it is old.
    """
    if not job.current:
        return 1.0
    keep = 1.0 if moving is None else 1.0 - moving.hysteresis
    delay_s = move_delay_s(job, in_place=in_place)
    if delay_s == 0 and not in_place:
        return keep
    if objective.penalty == "amortised":
        return keep * max(objective.horizon_s - delay_s, 0.0) / objective.horizon_s
    age_s = max(job.age_s, _LEAST_AGE_S)
    num_restarts = 0 if in_place else job.num_restarts
    return keep * paper_penalty(age_s, num_restarts, job.restart_delay_s, delay_s)


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
