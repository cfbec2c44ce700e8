"""The summary of a simulation, also by account: completion times, fairness, GPU time and restarts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pollux_slurm.simulator.engine.cluster import SimulationResult
from pollux_slurm.simulator.results.fairness import AloneTimes, share_above_one
from pollux_slurm.simulator.results.outcomes import JobOutcome, RoundOutcome, job_outcomes, round_outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountSummary:
    """The summary of one account's jobs; `rho_share_above_1` is the share of them with ρ > 1."""

    num_jobs: int
    avg_jct_s: float
    gpu_hours: float
    rho_worst: float | None
    rho_share_above_1: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Completion times (finish − submission) in seconds, and the resources used.

    `makespan_s` is last finish − first submission. `gpu_hours` counts every GPU while a job owned it.
    `gpu_hours_lost` is the part without progress at starts and moves, or whose progress a failure destroyed;
    `restart_share` is their ratio. `rho_*` is finish-time fairness (see `fairness`), None without traces for
    it. `num_asked` jobs have a moment to be finished by, which the policy promised to `num_accepted`, and
    `num_kept` of these were finished by it. `avg_goodput` is the mean goodput of all jobs over the rounds, in
    one-GPU equivalents. `node_hours` is the node time paid for, by GPU type. `solve_s` has the median, the
    95th percentile and the maximum of the decisions' times. `jobs` are completion times by name.
    `bound_avg_jct_s` is below what any policy's `avg_jct_s` can be; None where it was not computed. Where all
    jobs ended before the first round, `avg_goodput` and `solve_s` are 0.
    """

    policy: str
    objective: str | None
    workload: str
    num_jobs: int
    avg_jct_s: float
    p50_jct_s: float
    p90_jct_s: float
    p99_jct_s: float
    makespan_s: float
    restarts_per_job: float
    regroups_per_job: float
    restart_share: float
    gpu_hours: float
    gpu_hours_lost: float
    avg_goodput: float
    rho_worst: float | None
    rho_share_above_1: float | None
    num_asked: int
    num_accepted: int
    num_kept: int
    accounts: Mapping[str, AccountSummary]
    node_hours: Mapping[str, float]
    wall_s: float
    solve_s: Mapping[str, float]
    jobs: Mapping[str, float]
    bound_avg_jct_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """One simulation: its summary, and the outcome of each job and round."""

    summary: Summary
    jobs: tuple[JobOutcome, ...]
    rounds: tuple[RoundOutcome, ...]


def make_outcome(
    result: SimulationResult, *, policy: str, objective: str | None, workload: str, wall_s: float
) -> RunOutcome:
    """Return the outcome of a simulation that took `wall_s` seconds to run."""
    times = AloneTimes(result.cluster.gpus_per_node)
    jobs, rounds = job_outcomes(result, times), round_outcomes(result, times)
    completion_s = np.array([job.completion_s for job in jobs])
    p50, p90, p99 = (float(value) for value in np.percentile(completion_s, [50, 90, 99]))
    gpu_s, lost_gpu_s = sum(job.gpu_seconds for job in jobs), sum(job.lost_gpu_seconds for job in jobs)
    summary = Summary(
        policy=policy,
        objective=objective,
        workload=workload,
        num_jobs=len(jobs),
        avg_jct_s=float(completion_s.mean()),
        p50_jct_s=p50,
        p90_jct_s=p90,
        p99_jct_s=p99,
        makespan_s=max(job.finished_s for job in jobs) - min(job.submitted_s for job in jobs),
        restarts_per_job=sum(job.num_restarts for job in jobs) / len(jobs),
        regroups_per_job=sum(job.num_regroups for job in jobs) / len(jobs),
        restart_share=lost_gpu_s / gpu_s,
        gpu_hours=gpu_s / 3600,
        gpu_hours_lost=lost_gpu_s / 3600,
        avg_goodput=sum(record.goodput for record in rounds) / max(len(rounds), 1),
        rho_worst=_worst(jobs),
        rho_share_above_1=share_above_one(_ratios(jobs)),
        num_asked=sum(job.finish_by_s is not None for job in jobs),
        num_accepted=sum(job.accepted_s is not None for job in jobs),
        num_kept=sum(job.is_kept for job in jobs),
        accounts=_by_account(jobs),
        node_hours={kind: seconds / 3600 for kind, seconds in result.node_seconds.items()},
        wall_s=wall_s,
        solve_s=_solve_times([record.solve_s for record in rounds]),
        jobs={job.name: job.completion_s for job in jobs},
    )
    return RunOutcome(summary=summary, jobs=jobs, rounds=rounds)


def _by_account(jobs: Sequence[JobOutcome]) -> dict[str, AccountSummary]:
    members: dict[str, list[JobOutcome]] = {}
    for job in jobs:
        if job.account:
            members.setdefault(job.account, []).append(job)
    return {
        account: AccountSummary(
            num_jobs=len(members[account]),
            avg_jct_s=float(np.mean([job.completion_s for job in members[account]])),
            gpu_hours=sum(job.gpu_seconds for job in members[account]) / 3600,
            rho_worst=_worst(members[account]),
            rho_share_above_1=share_above_one(_ratios(members[account])),
        )
        for account in sorted(members)
    }


def _ratios(jobs: Sequence[JobOutcome]) -> list[float]:
    return [job.rho for job in jobs if job.rho is not None]


def _worst(jobs: Sequence[JobOutcome]) -> float | None:
    return max(_ratios(jobs), default=None)


def _solve_times(times_s: Sequence[float]) -> dict[str, float]:
    p50, p95 = np.percentile(times_s or [0.0], [50, 95])
    return {"p50": float(p50), "p95": float(p95), "max": max(times_s, default=0.0)}
