"""What became of each job and each round of a simulation, as plain records. Times in seconds of its clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pollux_slurm.simulator.engine.cluster import RoundRecord, SimulationResult
from pollux_slurm.simulator.engine.job import Pieces, SimulatedJob
from pollux_slurm.simulator.results.fairness import AloneTimes, alone_times, mean_rate_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """One job at its end.

    `completion_s` is finish − submission, `alone_s` what that would have been alone on a 1/J share and `rho`
    their ratio (see `fairness`; None where the traces do not tell). `lost_gpu_seconds` is the part of
    `gpu_seconds` in which it came up, at first or again, or that a failure took. `held` says from when it
    held how many GPUs, at each change.
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
    num_failures: int
    gpu_seconds: float
    lost_gpu_seconds: float
    held: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """One round.

    `goodput` is what all jobs together made of their GPUs until the next round, each measured in its own mean
    rate on one GPU: 10 means as much training as ten jobs make on a GPU each.
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
    held = _held(result)
    alone = alone_times(result, times)
    return tuple(
        _job_outcome(job, alone_s, held[job.job.name])
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


def _job_outcome(job: SimulatedJob, alone_s: float | None, held: list[tuple[float, int]]) -> JobOutcome:
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
        num_failures=job.num_failures,
        gpu_seconds=job.gpu_seconds,
        lost_gpu_seconds=job.lost_gpu_seconds,
        held=tuple(change for change in held if change[0] < job.finished_s),
    )


def _round_outcome(record: RoundRecord, rates: Mapping[str, float | None]) -> RoundOutcome:
    told = ((rates[name], made) for name, made in record.goodput.items())
    return RoundOutcome(
        at_s=record.at_s,
        num_jobs=record.num_jobs,
        num_waiting=record.num_waiting,
        nodes_up=record.nodes_up,
        gpus_up=record.gpus_up,
        gpus_used=record.gpus_used,
        gpus_unmanaged=record.gpus_unmanaged,
        goodput=sum(made / rate for rate, made in told if rate is not None),
        solve_s=record.solve_s,
    )


def _held(result: SimulationResult) -> dict[str, list[tuple[float, int]]]:
    """Return the changes of each job's number of GPUs; one that ended holds none from the next round on."""
    held: dict[str, list[tuple[float, int]]] = {job.job.name: [] for job in result.jobs}
    holding: Mapping[str, Pieces] = {}
    for record in result.rounds:
        for name, pieces in record.allocations.items():
            before = holding.get(name, ())
            # Most jobs hold just what they held.
            if pieces is not before and (count := _num_gpus(pieces)) != _num_gpus(before):
                held[name].append((record.at_s, count))
        for name, before in holding.items():
            if name not in record.allocations and before:
                held[name].append((record.at_s, 0))
        holding = record.allocations
    return held


def _num_gpus(pieces: Pieces) -> int:
    return sum(gpus for _, gpus in pieces)
