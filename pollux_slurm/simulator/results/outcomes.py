"""The outcome of each job and each round of a simulation. Times in seconds of the simulation's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pollux_slurm.simulator.engine.cluster import RoundRecord, SimulationResult
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.results.fairness import AloneTimes, alone_times, mean_rate_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """One job at its end.

    `completion_s` is finish − submission, `alone_s` the same alone on a 1/J share, and `rho` their ratio (see
    `fairness`; None without traces for it). `lost_gpu_seconds` is the part of `gpu_seconds` without progress
    at starts and moves, or whose progress a failure destroyed. `finish_by_s` is the moment that its user
    asked for, `accepted_s` when the policy promised it; None for neither. `gpu_changes` are (time, number of
    GPUs from then on).
    """

    name: str
    application: str
    account: str
    adaptive: bool
    submitted_s: float
    started_s: float
    finished_s: float
    completion_s: float
    alone_s: float | None
    rho: float | None
    num_restarts: int
    num_regroups: int
    num_failures: int
    gpu_seconds: float
    lost_gpu_seconds: float
    finish_by_s: float | None
    accepted_s: float | None
    gpu_changes: tuple[tuple[float, int], ...]

    @property
    def is_kept(self) -> bool:
        """Whether a promise was made, and the job finished by its moment."""
        return self.accepted_s is not None and self.finished_s <= (self.finish_by_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """One round.

    `goodput` is that of all jobs until the next round, each relative to the job's mean goodput on one GPU: 10
    is as much training as ten jobs do on one GPU each.
    """

    at_s: float
    num_jobs: int
    num_waiting: int
    nodes_up: int
    gpus_up: int
    gpus_used: int
    gpus_unmanaged: int
    goodput: float
    solve_s: float


def job_outcomes(result: SimulationResult, times: AloneTimes) -> tuple[JobOutcome, ...]:
    """Return all jobs in the order of the workload."""
    changes = _gpu_changes(result)
    alone = alone_times(result, times)
    return tuple(
        _job_outcome(job, alone_s, changes[job.job.name])
        for job, alone_s in zip(result.jobs, alone, strict=True)
    )


def round_outcomes(result: SimulationResult, times: AloneTimes) -> tuple[RoundOutcome, ...]:
    """Return all rounds with a job in them, in order."""
    rates = {}
    for job in result.jobs:
        if job.application.name not in rates:
            rates[job.application.name] = mean_rate_alone(times, job.application)
    by_job = {job.job.name: rates[job.application.name] for job in result.jobs}
    return tuple(_round_outcome(record, by_job) for record in result.rounds)


def _job_outcome(job: SimulatedJob, alone_s: float | None, changes: list[tuple[float, int]]) -> JobOutcome:
    assert job.finished_s is not None
    assert job.first_started_s is not None
    completion_s = job.finished_s - job.job.submitted_s
    return JobOutcome(
        name=job.job.name,
        application=job.application.name,
        account=job.job.account,
        adaptive=job.adaptive,
        submitted_s=job.job.submitted_s,
        started_s=job.first_started_s,
        finished_s=job.finished_s,
        completion_s=completion_s,
        alone_s=alone_s,
        rho=None if alone_s is None else completion_s / alone_s,
        num_restarts=job.num_restarts or 0,
        num_regroups=job.num_regroups,
        num_failures=job.num_failures,
        gpu_seconds=job.gpu_seconds,
        lost_gpu_seconds=job.lost_gpu_seconds,
        finish_by_s=job.job.finish_by_s,
        accepted_s=job.accepted_s,
        gpu_changes=tuple(change for change in changes if change[0] < job.finished_s),
    )


def _round_outcome(record: RoundRecord, rates: Mapping[str, float | None]) -> RoundOutcome:
    with_rates = ((rates[name], made) for name, made in record.goodput.items())
    return RoundOutcome(
        at_s=record.at_s,
        num_jobs=record.num_jobs,
        num_waiting=record.num_waiting,
        nodes_up=record.nodes_up,
        gpus_up=record.gpus_up,
        gpus_used=record.gpus_used,
        gpus_unmanaged=record.gpus_unmanaged,
        goodput=sum(made / rate for rate, made in with_rates if rate is not None),
        solve_s=record.solve_s,
    )


def _gpu_changes(result: SimulationResult) -> dict[str, list[tuple[float, int]]]:
    """Return the changes of each job's number of GPUs; an ended job has none from the next round on."""
    changes: dict[str, list[tuple[float, int]]] = {job.job.name: [] for job in result.jobs}
    holding: Mapping[str, GpusByNode] = {}
    for record in result.rounds:
        for name, allocation in record.allocations.items():
            before = holding.get(name, ())
            # Most jobs keep their allocation.
            if allocation is not before and (count := _num_gpus(allocation)) != _num_gpus(before):
                changes[name].append((record.at_s, count))
        for name, before in holding.items():
            if name not in record.allocations and before:
                changes[name].append((record.at_s, 0))
        holding = record.allocations
    return changes


def _num_gpus(allocation: GpusByNode) -> int:
    return sum(gpus for _, gpus in allocation)
