"""What a simulation comes to: completion times, GPU time, restarts, as one plain record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pollux_slurm.simulator.cluster import SimulationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Completion times (finish − submission) in seconds by job, and what they cost.

    `makespan_s` is last finish − first submission; `gpu_hours` counts every GPU while a job held it, and
    `restart_share` is the part of them in which jobs came up again; `solve_s` holds the median, the 95th
    percentile and the longest of the decisions.
    """

    policy: str
    objective: str | None
    workload: str
    avg_jct_s: float
    p50_jct_s: float
    p90_jct_s: float
    p99_jct_s: float
    makespan_s: float
    restarts_per_job: float
    restart_share: float
    gpu_hours: float
    wall_s: float
    solve_s: Mapping[str, float]
    jobs: Mapping[str, float]


def summarize(
    result: SimulationResult, *, policy: str, objective: str | None, workload: str, wall_s: float
) -> Summary:
    """Return the summary of a simulation that took `wall_s` seconds to run."""
    completion_s = {job.job.name: _end(job.finished_s) - job.job.submitted_s for job in result.jobs}
    times = np.array(list(completion_s.values()))
    p50, p90, p99 = (float(value) for value in np.percentile(times, [50, 90, 99]))
    gpu_s = sum(job.gpu_seconds for job in result.jobs)
    lost_gpu_s = sum(job.lost_gpu_seconds for job in result.jobs)
    last = max(_end(job.finished_s) for job in result.jobs)
    return Summary(
        policy=policy,
        objective=objective,
        workload=workload,
        avg_jct_s=float(times.mean()),
        p50_jct_s=p50,
        p90_jct_s=p90,
        p99_jct_s=p99,
        makespan_s=last - min(job.job.submitted_s for job in result.jobs),
        restarts_per_job=sum(job.num_restarts or 0 for job in result.jobs) / len(times),
        restart_share=lost_gpu_s / gpu_s,
        gpu_hours=gpu_s / 3600,
        wall_s=wall_s,
        solve_s=_solve_times([record.solve_s for record in result.rounds]),
        jobs=completion_s,
    )


def _solve_times(times_s: Sequence[float]) -> dict[str, float]:
    p50, p95 = np.percentile(times_s, [50, 95])
    return {"p50": float(p50), "p95": float(p95), "max": max(times_s)}


def _end(finished_s: float | None) -> float:
    assert finished_s is not None
    return finished_s
