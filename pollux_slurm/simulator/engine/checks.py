"""Checks of a simulation's inputs and of its policy's decisions. All raise `SimulationError`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pollux_slurm.errors import SimulationError
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.cluster_rules import Rules
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.workload import WorkloadJob, listed


def check_workload(workload: Sequence[WorkloadJob], applications: Mapping[str, Application]) -> None:
    """Refuse two jobs of one name, impossible numbers, and applications without traces."""
    names: set[str] = set()
    for job in workload:
        if job.name in names:
            raise SimulationError(f"two jobs are called {job.name!r}")
        names.add(job.name)
        if job.application not in applications:
            raise SimulationError(
                f"job {job.name}: no traces of application {job.application!r} "
                f"(there are: {listed(applications)})"
            )
        if not (math.isfinite(job.submitted_s) and job.num_replicas >= 1 and job.batch_size >= 1):
            raise SimulationError(
                f"job {job.name} needs a time of submission, GPUs and a batch size, not "
                f"{job.submitted_s}, {job.num_replicas} and {job.batch_size}"
            )
        if not 0 < job.work < math.inf:
            raise SimulationError(f"job {job.name}: its work must be above 0, not {job.work}")


def check_times(workload: Sequence[WorkloadJob], cluster: Cluster) -> None:
    """Refuse jobs that are submitted after the end of the longest simulation."""
    for job in workload:
        if job.submitted_s > cluster.longest_s:
            raise SimulationError(
                f"job {job.name} is submitted at {job.submitted_s:.0f} s, and a simulation is given up after "
                f"{cluster.longest_s / 86400:.0f} days, {cluster.longest_s:.0f} s: give times relative to "
                "the first submission"
            )


def check_sizes(rigid: Sequence[SimulatedJob], rules: Rules, cluster: Cluster) -> None:
    """Refuse rigid and unmanaged jobs that request more GPUs than the cluster has of any type."""
    largest = cluster.most_gpus
    wanted = [(f"job {job.job.name}", job.job.num_replicas) for job in rigid]
    wanted += [("an unmanaged job", other.num_gpus) for other in rules.unmanaged_jobs]
    for name, num_gpus in wanted:
        if num_gpus > largest:
            raise SimulationError(
                f"{name} asks for {num_gpus} GPUs, but the cluster has at most {largest} of one type"
            )


def check_allocations(allocations: Mapping[str, GpusByNode], cluster: Cluster) -> None:
    """Refuse allocations of GPUs that do not exist or are not available in this round."""
    available, num_nodes = cluster.node_gpus, cluster.num_nodes
    used = [0] * num_nodes
    for name, allocation in allocations.items():
        for node, gpus in allocation:
            if not (0 <= node < num_nodes and gpus > 0):
                raise SimulationError(f"job {name} was given {gpus} GPUs on node {node}")
            used[node] += gpus
    for node, gpus in enumerate(used):
        if gpus > available[node]:
            raise SimulationError(f"node {node} was given away {gpus} times over {available[node]} GPUs")
