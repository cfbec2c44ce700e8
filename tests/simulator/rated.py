"""Applications of one GPU whose rates by GPU type a test gives, and jobs of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pollux_slurm.simulator import Application, Cluster, NodeGroup, SimulationResult, WorkloadJob, simulate
from pollux_slurm.simulator.engine.cluster import SchedulingPolicy
from pollux_slurm.simulator.inputs.rate_tables import RateApplication


def one_gpu_cluster(*types: str, interval_s: float = 360.0) -> Cluster:
    """Return a cluster of one GPU of each type, with free moves."""
    groups = tuple(NodeGroup(num_nodes=1, gpus_per_node=1, gpu_type=kind) for kind in types)
    return Cluster(groups=groups, interval_s=interval_s, restart_delay_s=0.0)


def hours(name: str, work: float, application: str = "", **settings: Any) -> WorkloadJob:
    """Return a job of this many hours on a V100."""
    return WorkloadJob(
        name=name,
        submitted_s=0.0,
        application=application or name,
        num_replicas=1,
        batch_size=1,
        work=work,
        **settings,
    )


def run_rated(
    policy: SchedulingPolicy, cluster: Cluster, rates: Mapping[str, Mapping[str, float]], *jobs: WorkloadJob
) -> SimulationResult:
    """Simulate jobs of applications with these rates in steps a second by GPU type."""
    applications: dict[str, Application] = {
        name: RateApplication(name, by_type) for name, by_type in rates.items()
    }
    return simulate(jobs, applications, policy, cluster)
