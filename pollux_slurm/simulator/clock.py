"""The clock of a simulation: rounds of jobs that train and a policy that places them.

Rules `osdi21`, those of the Pollux artifact's simulator: the first round is one interval after the start; a
submission is seen at the next round; completion is exact, its GPUs are free at the next round; a job whose
nodes changed in any way to others makes no progress for the restart delay, its first start included.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pollux_slurm.errors import SimulationError
from pollux_slurm.simulator.applications import Application
from pollux_slurm.simulator.cluster import Cluster, RoundRecord, SchedulingPolicy, SimulationResult
from pollux_slurm.simulator.job import Pieces, SimulatedJob
from pollux_slurm.simulator.rules import OSDI21, Rules
from pollux_slurm.simulator.workload import WorkloadJob


def simulate(
    workload: Sequence[WorkloadJob],
    applications: Mapping[str, Application],
    policy: SchedulingPolicy,
    cluster: Cluster,
    *,
    rules: Rules = OSDI21,
    on_round: Callable[[float, int], None] = lambda now_s, num_left: None,
    clock: Callable[[], float] = time.perf_counter,
) -> SimulationResult:
    """Run `workload` to the end of its last job.

    `on_round` is told the simulated time and the number of unfinished jobs after each round.
    Raises `SimulationError` for an impossible allocation or a workload that does not end.
    """
    jobs = [
        SimulatedJob(
            job=job,
            application=applications[job.application],
            choose_batch=policy.choose_batch,
            expected_delay_s=cluster.restart_delay_s,
        )
        for job in workload
    ]
    groups = cluster.node_groups
    rounds: list[RoundRecord] = []
    now_s = 0.0
    unfinished = list(jobs)
    while unfinished:
        before = {job.job.name: job.progress for job in unfinished if job.pieces}
        for job in unfinished:
            job.advance(now_s, cluster.interval_s)
        if rounds and rounds[-1].at_s == now_s:
            made = {
                job.job.name: (job.progress - before[job.job.name])
                * job.application.initial_batch_size
                / cluster.interval_s
                for job in unfinished
                if job.pieces
            }
            rounds[-1] = dataclasses.replace(rounds[-1], goodput=made)
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
                    slowest = min(
                        (groups[node] for node, _ in pieces or ((0, 1),)),
                        key=lambda group: group.speed_of(job.application.name),
                    )
                    job.reallocate(
                        pieces,
                        delay_s=cluster.restart_delay_s,
                        now_s=now_s,
                        gpu_type=slowest.gpu_type,
                        speed=slowest.speed_of(job.application.name),
                    )
            rounds.append(
                RoundRecord(
                    at_s=now_s,
                    num_jobs=len(active),
                    allocations=allocations,
                    solve_s=solve_s,
                    goodput={},
                    nodes_up=cluster.num_nodes,
                    gpus_up=cluster.num_gpus,
                    gpus_used=sum(job.num_gpus for job in active),
                    gpus_unmanaged=0,
                    num_waiting=sum(1 for job in active if not job.pieces),
                )
            )
        on_round(now_s, len(unfinished))
        if now_s > cluster.longest_s:
            names = ", ".join(job.job.name for job in unfinished[:3])
            raise SimulationError(
                f"after {now_s / 86400:.0f} simulated days {len(unfinished)} jobs have not ended "
                f"({names}, …): the cluster is too small for them, or the policy never serves them"
            )
    return SimulationResult(cluster=cluster, jobs=tuple(jobs), rounds=tuple(rounds), rules=rules)


def _check(allocations: Mapping[str, Pieces], cluster: Cluster) -> None:
    used: Counter[int] = Counter()
    for name, pieces in allocations.items():
        for node, gpus in pieces:
            if not (0 <= node < cluster.num_nodes and gpus > 0):
                raise SimulationError(f"job {name} was given {gpus} GPUs on node {node}")
            used[node] += gpus
    for node, gpus in used.items():
        if gpus > cluster.node_gpus[node]:
            raise SimulationError(
                f"node {node} was given away {gpus} times over {cluster.node_gpus[node]} GPUs"
            )
