"""Applications whose rates a test gives, and jobs of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pollux_slurm.simulator import (
    Application,
    Cluster,
    NodeGroup,
    SimulatedJob,
    SimulationResult,
    WorkloadJob,
    simulate,
)
from pollux_slurm.simulator.engine.cluster import SchedulingPolicy
from pollux_slurm.simulator.inputs.rate_tables import RateApplication, batch_size_of


def one_gpu_cluster(*types: str, interval_s: float = 360.0) -> Cluster:
    """Return a cluster of one GPU of each type, with free moves."""
    groups = tuple(NodeGroup(num_nodes=1, gpus_per_node=1, gpu_type=kind) for kind in types)
    return Cluster(groups=groups, interval_s=interval_s, restart_delay_s=0.0)


def hours(name: str, work: float, application: str = "", **settings: Any) -> WorkloadJob:
    """Return a job of this many hours on a GPU of the first type; its application names its batch."""
    usual = {"submitted_s": 0.0, "num_replicas": 1, "batch_size": batch_size_of(application or name)}
    return WorkloadJob(name=name, application=application or name, work=work, **usual | settings)


def application_of(name: str, rates: Mapping[str, float | Mapping[int, float]]) -> RateApplication:
    by_gpus = {kind: rate if isinstance(rate, Mapping) else {1: rate} for kind, rate in rates.items()}
    return RateApplication(name, by_gpus, reference=next(iter(rates)))


def job_of(job: WorkloadJob, rates: Mapping[int, float], *, done: float = 0.0) -> SimulatedJob:
    """Return a job that has trained this part of its steps, for a policy to decide on."""
    application = application_of(job.application, {"t4": rates})
    made = SimulatedJob(job=job, application=application, choose_batch=lambda job: NotImplemented)
    made.progress = done * made.epoch_end(0)
    return made


def run_rated(
    policy: SchedulingPolicy,
    cluster: Cluster,
    rates: Mapping[str, Mapping[str, float | Mapping[int, float]]],
    *jobs: WorkloadJob,
) -> SimulationResult:
    """Simulate jobs of applications with these steps a second by GPU type, and by number of GPUs."""
    applications: dict[str, Application] = {
        name: application_of(name, by_type) for name, by_type in rates.items()
    }
    return simulate(jobs, applications, policy, cluster)
