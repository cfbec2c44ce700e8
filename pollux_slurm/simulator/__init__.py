"""Replays traces through the daemon's own policy, with a clock instead of a cluster.

May be imported by `cli`.
"""

from pollux_slurm.simulator.engine.clock import simulate
from pollux_slurm.simulator.engine.cluster import Cluster, NodeGroup, RoundRecord, SimulationResult
from pollux_slurm.simulator.engine.cluster_rules import OSDI21, Delays, Failures, OtherJob, Rules, slurm_rules
from pollux_slurm.simulator.engine.job import SimulatedJob
from pollux_slurm.simulator.inputs.applications import Application, read_application, read_applications
from pollux_slurm.simulator.inputs.workload import WorkloadJob, read_workload
from pollux_slurm.simulator.site.measured_jobs import MeasuredQueue, read_queue, read_truth

__all__ = [
    "OSDI21",
    "Application",
    "Cluster",
    "Delays",
    "Failures",
    "MeasuredQueue",
    "NodeGroup",
    "OtherJob",
    "RoundRecord",
    "Rules",
    "SimulatedJob",
    "SimulationResult",
    "WorkloadJob",
    "read_application",
    "read_applications",
    "read_queue",
    "read_truth",
    "read_workload",
    "simulate",
    "slurm_rules",
]
