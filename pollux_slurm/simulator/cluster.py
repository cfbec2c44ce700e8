"""The clock of a simulation: rounds of jobs that train and a policy that places them.

Rules `osdi21`, those of the Pollux artifact's simulator: the first round is one interval after the start; a
submission is seen at the next round; completion is exact, its GPUs are free at the next round; a job whose
nodes changed in any way to others makes no progress for the restart delay, its first start included.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pollux_slurm.errors import SimulationError
from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.applications import Application
from pollux_slurm.simulator.job import Pieces, SimulatedJob
from pollux_slurm.simulator.workload import WorkloadJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes, and how the simulation treats them. Times in seconds."""

    num_nodes: int = 16
    gpus_per_node: int = 4
    interval_s: float = 60.0
    restart_delay_s: float = 30.0
    # A workload that has not ended by then never will.
    longest_s: float = 400 * 86400.0

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or self.gpus_per_node < 1:
            raise SimulationError("a cluster has at least one node with one GPU")
        if self.interval_s <= 0 or self.restart_delay_s < 0:
            raise SimulationError("the interval must be above 0 s, the restart delay 0 s or more")


class SchedulingPolicy(Protocol):
    """What decides in a simulation."""

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        """Return the batch that the job uses on the GPUs it holds."""
        ...

    def allocate(self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster) -> Mapping[str, Pieces]:
        """Return the GPUs of each job by name, of those submitted and unfinished; none for those left out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One round: how many jobs were there, which GPUs were given, and how long the decision took."""

    at_s: float
    num_jobs: int
    allocations: Mapping[str, Pieces]
    solve_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """All jobs at their ends, and all rounds with a job in them."""

    cluster: Cluster
    jobs: tuple[SimulatedJob, ...]
    rounds: tuple[RoundRecord, ...]


def simulate(
    workload: Sequence[WorkloadJob],
    applications: Mapping[str, Application],
    policy: SchedulingPolicy,
    cluster: Cluster,
    *,
    on_round: Callable[[float, int], None] = lambda now_s, num_left: None,
    clock: Callable[[], float] = time.perf_counter,
) -> SimulationResult:
    """Run `workload` to the end of its last job.

    `on_round` is told the simulated time and the number of unfinished jobs after each round.
    Raises `SimulationError` for an impossible allocation or a workload that does not end.
    """
    jobs = [
        SimulatedJob(job=job, application=applications[job.application], choose_batch=policy.choose_batch)
        for job in workload
    ]
    rounds = []
    now_s = 0.0
    unfinished = list(jobs)
    while unfinished:
        for job in unfinished:
            job.advance(now_s, cluster.interval_s)
        now_s += cluster.interval_s
        unfinished = [job for job in unfinished if job.finished_s is None]
        active = [job for job in unfinished if job.job.submitted_s <= now_s]
        if active:
            began = clock()
            allocations = policy.allocate(now_s, active, cluster)
            solve_s = clock() - began
            _check(allocations, cluster)
            for job in active:
                pieces = allocations.get(job.job.name, ())
                if pieces != job.pieces:
                    job.reallocate(pieces, delay_s=cluster.restart_delay_s)
            rounds.append(
                RoundRecord(at_s=now_s, num_jobs=len(active), allocations=allocations, solve_s=solve_s)
            )
        on_round(now_s, len(unfinished))
        if now_s > cluster.longest_s:
            names = ", ".join(job.job.name for job in unfinished[:3])
            raise SimulationError(
                f"after {now_s / 86400:.0f} simulated days {len(unfinished)} jobs have not ended "
                f"({names}, …): the cluster is too small for them, or the policy never serves them"
            )
    return SimulationResult(cluster=cluster, jobs=tuple(jobs), rounds=tuple(rounds))


def _check(allocations: Mapping[str, Pieces], cluster: Cluster) -> None:
    used: Counter[int] = Counter()
    for name, pieces in allocations.items():
        for node, gpus in pieces:
            if not (0 <= node < cluster.num_nodes and gpus > 0):
                raise SimulationError(f"job {name} was given {gpus} GPUs on node {node}")
            used[node] += gpus
    for node, gpus in used.items():
        if gpus > cluster.gpus_per_node:
            raise SimulationError(
                f"node {node} was given away {gpus} times over {cluster.gpus_per_node} GPUs"
            )
