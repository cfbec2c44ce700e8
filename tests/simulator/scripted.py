"""A policy whose decisions a test gives, and the test application."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator import OSDI21, Cluster, Rules, SimulationResult, simulate
from pollux_slurm.simulator.engine.cluster import SchedulingPolicy
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.batch_splits import user_batch
from pollux_slurm.simulator.inputs.workload import WorkloadJob
from tests.simulator.builders import made_application

Rule = Callable[[float, Sequence[SimulatedJob]], Mapping[str, GpusByNode]]


class Scripted:
    """A rule, with the user's batch size. `seen` are the GPUs that it was offered, by time."""

    resizes = True

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.seen: dict[float, tuple[int, ...]] = {}

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return user_batch(job.job, job.application, job.num_gpus)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        self.seen[now_s] = cluster.node_gpus
        return self._rule(now_s, jobs)


def run(
    tmp_path: Path,
    rule: Rule | SchedulingPolicy,
    *jobs: WorkloadJob,
    cluster: Cluster | None = None,
    rules: Rules = OSDI21,
) -> SimulationResult:
    policy: SchedulingPolicy = Scripted(rule) if callable(rule) else rule
    return simulate(
        jobs, {"made": made_application(tmp_path)}, policy, cluster or Cluster(num_nodes=2), rules=rules
    )
