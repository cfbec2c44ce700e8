"""The simulator: replays a workload through the daemon's policy, with a simulated cluster and clock.

May be imported by `cli`.
"""

from pollux_slurm.simulator.engine.cluster import Cluster, NodeGroup, RoundRecord, SimulationResult
from pollux_slurm.simulator.engine.cluster_rules import (
    OSDI21,
    Delays,
    Failures,
    InPlace,
    Rules,
    UnmanagedJob,
    slurm_rules,
)
from pollux_slurm.simulator.engine.job import SimulatedJob
from pollux_slurm.simulator.engine.simulation import simulate
from pollux_slurm.simulator.inputs.applications import Application, read_application, read_applications
from pollux_slurm.simulator.inputs.workload import WorkloadJob, read_workload
from pollux_slurm.simulator.site.measured_jobs import MeasuredQueue, load_applications, read_queue

__all__ = [
    "OSDI21",
    "Application",
    "Cluster",
    "Delays",
    "Failures",
    "InPlace",
    "MeasuredQueue",
    "NodeGroup",
    "RoundRecord",
    "Rules",
    "SimulatedJob",
    "SimulationResult",
    "UnmanagedJob",
    "WorkloadJob",
    "load_applications",
    "read_application",
    "read_applications",
    "read_queue",
    "read_workload",
    "simulate",
    "slurm_rules",
]
