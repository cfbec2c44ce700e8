"""The restart penalty (Pollux, OSDI 2021, eq. 13-14): the factor on the speedup of a job that moves."""

from __future__ import annotations

from pollux_slurm.model import MovingRules, Objective, ProblemJob


def restart_penalty(job: ProblemJob, objective: Objective, moving: MovingRules | None = None) -> float:
    """Return f_j, the factor on a job's speedup if its allocation changes; 1 for a job without GPUs.

    "paper" (eq. 13): max(T − R·δ, 0)/(T + δ), with T the job's age, R its restarts so far, δ its restart
    delay. "amortised": max(H − δ, 0)/H, with H the horizon over which the delay must pay. Both are multiplied
    by 1 − hysteresis.
    """
    if not job.current:
        return 1.0
    keep = 1.0 if moving is None else 1.0 - moving.hysteresis
    delay_s = job.restart_delay_s
    if delay_s == 0:
        return keep
    if objective.penalty == "amortised":
        return keep * max(objective.horizon_s - delay_s, 0.0) / objective.horizon_s
    return keep * paper_penalty(job.age_s, job.num_restarts, delay_s)


def paper_penalty(age_s: float, num_restarts: int, delay_s: float) -> float:
    """Return max(T − R·δ, 0)/(T + δ): the part of its life that a job does not spend restarting (eq. 13)."""
    return max(age_s - num_restarts * delay_s, 0.0) / (age_s + delay_s)
