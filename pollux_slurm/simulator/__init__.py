"""Replays traces through the daemon's own policy, with a clock instead of a cluster."""

from pollux_slurm.simulator.applications import Application, read_application, read_applications
from pollux_slurm.simulator.cluster import Cluster, SimulationResult, simulate
from pollux_slurm.simulator.workload import WorkloadJob, read_workload

__all__ = [
    "Application",
    "Cluster",
    "SimulationResult",
    "WorkloadJob",
    "read_application",
    "read_applications",
    "read_workload",
    "simulate",
]
