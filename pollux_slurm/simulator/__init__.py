"""Replays traces through the daemon's own policy, with a clock instead of a cluster."""

from pollux_slurm.simulator.applications import Application, read_application, read_applications
from pollux_slurm.simulator.clock import simulate
from pollux_slurm.simulator.cluster import Cluster, NodeGroup, RoundRecord, SimulationResult
from pollux_slurm.simulator.job import SimulatedJob
from pollux_slurm.simulator.measured import MeasuredQueue, read_queue, read_truth
from pollux_slurm.simulator.rules import OSDI21, Delays, Failures, OtherJob, Rules, slurm_rules
from pollux_slurm.simulator.workload import WorkloadJob, read_workload

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
