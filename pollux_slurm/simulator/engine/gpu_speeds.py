"""How fast GPU types are, where traces have step times of their own for them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace

from pollux_slurm.errors import SimulationError
from pollux_slurm.simulator.engine.cluster import Cluster, NodeGroup
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.workload import listed


def with_traced_speeds(cluster: Cluster, applications: Mapping[str, Application]) -> Cluster:
    """Return the cluster with the speeds of all types for which applications have step times.

    Policies expect these speeds before a job has measured a type, and equal shares are counted in them. Jobs
    have the step times themselves. Raises `SimulationError` for a speed that is missing or has no effect.
    """
    return replace(
        cluster, groups=tuple(_with_traced_speeds(group, applications) for group in cluster.groups)
    )


def _with_traced_speeds(group: NodeGroup, applications: Mapping[str, Application]) -> NodeGroup:
    gpu_type, given = group.gpu_type, dict(group.speeds)
    unknown = [name for name in given if name not in applications]
    if unknown:
        raise SimulationError(
            f"GPUs of type {gpu_type}: no traces of application {unknown[0]!r} "
            f"(there are: {listed(applications)})"
        )
    traced = {name for name, application in applications.items() if gpu_type in application.gpu_types}
    if not traced:
        return group
    useless = sorted(traced & set(given))
    if useless or (group.speed != 1 and traced == set(applications)):
        raise SimulationError(
            f"{useless[0] if useless else 'every application'} has step times on {gpu_type}: "
            "leave out its speed"
        )
    missing = sorted(set(applications) - traced - set(given))
    if missing and group.speed == 1:
        raise SimulationError(
            f"{missing[0]} has no placements-{gpu_type}.csv, unlike {min(traced)}: give its speed, such as "
            f"{group.num_nodes}x{group.gpus_per_node}:{gpu_type},{missing[0]}=2"
        )
    speeds = given | {name: _traced_speed(applications[name], gpu_type) for name in traced}
    mean = statistics.geometric_mean(speeds.get(name, group.speed) for name in applications)
    return replace(group, speed=mean, speeds=tuple(sorted(speeds.items())))


def _traced_speed(application: Application, gpu_type: str) -> float:
    """Return how fast one GPU is with the largest micro-batch, relative to one of the plain nodes."""
    plain, of_type = (application.step_time((1,), application.max_atomic, kind) for kind in ("", gpu_type))
    return plain.step_s / of_type.step_s
