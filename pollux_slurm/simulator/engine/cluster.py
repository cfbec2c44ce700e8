"""The types of a simulation: its cluster, the interface of its policies, its rounds and its result."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pollux_slurm.errors import SimulationError
from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.engine.cluster_rules import OSDI21, Rules
from pollux_slurm.simulator.engine.job import MEASURED_GPU_TYPE, GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.workload import listed


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Equal nodes with GPUs of one type.

    One GPU computes `speed` times as fast as the measured type, None where that is not given; `speeds` has
    factors of single applications. Synchronisation takes as long as measured. Step times of the type itself
    count instead, where an application has them.
    """

    num_nodes: int
    gpus_per_node: int = 4
    gpu_type: str = MEASURED_GPU_TYPE
    speed: float | None = None
    speeds: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or self.gpus_per_node < 1 or not self.gpu_type:
            raise SimulationError("a group has at least one node with one GPU of a type that has a name")
        for name, speed in (("GPUs of type " + self.gpu_type, self.common_speed), *self.speeds):
            if not (math.isfinite(speed) and speed > 0):
                raise SimulationError(f"the speed of {name} must be a number above 0, not {speed}")

    @property
    def common_speed(self) -> float:
        """The speed of applications without one of their own: that of the measured type if none is given."""
        return 1.0 if self.speed is None else self.speed

    def speed_of(self, application: str) -> float:
        return dict(self.speeds).get(application, self.common_speed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The nodes, numbered from 0, and how the simulation treats them. Times in seconds.

    `num_nodes` and `gpus_per_node` describe equal nodes of the measured GPU type. With `groups` they are the
    number of all nodes, and the most GPUs of one. In the cluster that a policy gets, `available` are the GPUs
    that it may allocate of each node; nodes may be down, or used by others. None is all.
    """

    num_nodes: int = 16
    gpus_per_node: int = 4
    interval_s: float = 60.0
    restart_delay_s: float = 30.0
    # A workload that has not ended by then never will.
    longest_s: float = 400 * 86400.0
    groups: tuple[NodeGroup, ...] = ()
    available: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.groups:
            object.__setattr__(self, "num_nodes", sum(group.num_nodes for group in self.groups))
            object.__setattr__(self, "gpus_per_node", max(group.gpus_per_node for group in self.groups))
        if self.num_nodes < 1 or self.gpus_per_node < 1:
            raise SimulationError("a cluster has at least one node with one GPU")
        if not (0 < self.interval_s < math.inf and 0 <= self.restart_delay_s < math.inf):
            raise SimulationError("the interval must be above 0 s, the restart delay 0 s or more")
        seen: dict[str, NodeGroup] = {}
        for group in self.groups:
            first = seen.setdefault(group.gpu_type, group)
            if (first.speed, first.speeds) != (group.speed, group.speeds):
                raise SimulationError(f"GPUs of type {group.gpu_type} have one speed, not several")

    @property
    def node_groups(self) -> tuple[NodeGroup, ...]:
        """The group of each node."""
        if not self.groups:
            alike = NodeGroup(num_nodes=self.num_nodes, gpus_per_node=self.gpus_per_node)
            return (alike,) * self.num_nodes
        return tuple(group for group in self.groups for _ in range(group.num_nodes))

    @property
    def node_gpus(self) -> tuple[int, ...]:
        """The GPUs that may be allocated of each node."""
        if self.available is not None:
            return self.available
        if not self.groups:
            return (self.gpus_per_node,) * self.num_nodes
        return tuple(group.gpus_per_node for group in self.node_groups)

    @property
    def node_types(self) -> tuple[str, ...]:
        """The GPU type of each node."""
        return tuple(group.gpu_type for group in self.node_groups)

    @property
    def most_gpus(self) -> int:
        """The most GPUs of one type that a job could ever have."""
        sizes: Counter[str] = Counter()
        for group in self.node_groups:
            sizes[group.gpu_type] += group.gpus_per_node
        return max(sizes.values())

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The distinct GPU types, in the order of the groups."""
        return tuple(dict.fromkeys(group.gpu_type for group in self.groups)) or (MEASURED_GPU_TYPE,)

    @property
    def fastest_types(self) -> tuple[str, ...]:
        """The distinct GPU types, the fastest first: the order in which users request them."""
        speeds = {group.gpu_type: group.common_speed for group in self.groups}
        return tuple(sorted(self.gpu_types, key=lambda kind: -speeds.get(kind, 1.0)))

    @property
    def num_gpus(self) -> int:
        """All GPUs that may be allocated."""
        return sum(self.node_gpus)

    def with_available(self, available: Sequence[int]) -> Cluster:
        """Return the cluster of a round in which only `available` GPUs may be allocated of each node."""
        return replace(self, available=tuple(available))

    def with_only(self, gpu_type: str) -> Cluster:
        """Return the cluster of which all GPUs of one type may be allocated, and no others."""
        nodes = zip(self.node_types, self.node_gpus, strict=True)
        return self.with_available([gpus * (of == gpu_type) for of, gpus in nodes])


def with_traced_speeds(cluster: Cluster, applications: Mapping[str, Application]) -> Cluster:
    """Return the cluster with the speeds of all types for which applications have step times.

    Policies expect these speeds before a job has measured a type, and equal shares are counted in them. Jobs
    have the step times themselves. Raises `SimulationError` for a speed that is missing or has no effect.
    """
    plain = _plain_type(cluster, applications)
    return replace(
        cluster, groups=tuple(_with_traced_speeds(group, applications, plain) for group in cluster.groups)
    )


def _plain_type(cluster: Cluster, applications: Mapping[str, Application]) -> str:
    """Return the type that is known by the step times of the plain nodes alone.

    It is the measured type; on traces without types, it is the only one without a speed.
    """
    unknown = {group.gpu_type for group in cluster.groups if _without_speed(group, applications)}
    if len(unknown) == 1 and not _traced_types(applications):
        return unknown.pop()
    return MEASURED_GPU_TYPE


def _traced_types(applications: Mapping[str, Application]) -> set[str]:
    return {gpu_type for application in applications.values() for gpu_type in application.gpu_types}


def _without_speed(group: NodeGroup, applications: Mapping[str, Application]) -> list[str]:
    """Return the applications that have neither step times on a group nor a speed."""
    if group.speed is not None:
        return []
    traced = {name for name, application in applications.items() if group.gpu_type in application.gpu_types}
    return sorted(set(applications) - traced - set(dict(group.speeds)))


def _with_traced_speeds(group: NodeGroup, applications: Mapping[str, Application], plain: str) -> NodeGroup:
    gpu_type, given = group.gpu_type, dict(group.speeds)
    unknown = [name for name in given if name not in applications]
    if unknown:
        raise SimulationError(
            f"GPUs of type {gpu_type}: no traces of application {unknown[0]!r} "
            f"(there are: {listed(applications)})"
        )
    traced = {name for name, application in applications.items() if gpu_type in application.gpu_types}
    missing = _without_speed(group, applications)
    if not traced and missing and gpu_type != plain:
        raise SimulationError(
            f"GPUs of type {gpu_type} have neither step times of their own nor a speed "
            f"(there are: {listed(_traced_types(applications) | {MEASURED_GPU_TYPE})}): give its speed, "
            f"such as {group.num_nodes}x{group.gpus_per_node}:{gpu_type}=2"
        )
    if not traced:
        return group
    useless = sorted(traced & set(given))
    if useless or (group.speed is not None and traced == set(applications)):
        raise SimulationError(
            f"{useless[0] if useless else 'every application'} has step times on {gpu_type}: "
            "leave out its speed"
        )
    if missing:
        raise SimulationError(
            f"{missing[0]} has no placements-{gpu_type}.csv, unlike {min(traced)}: give its speed, such as "
            f"{group.num_nodes}x{group.gpus_per_node}:{gpu_type},{missing[0]}=2"
        )
    speeds = given | {name: _traced_speed(applications[name], gpu_type) for name in traced}
    mean = statistics.geometric_mean(speeds.get(name, group.common_speed) for name in applications)
    return replace(group, speed=mean, speeds=tuple(sorted(speeds.items())))


def _traced_speed(application: Application, gpu_type: str) -> float:
    """Return how fast one GPU is with the largest micro-batch, relative to one of the plain nodes."""
    plain, of_type = (application.step_time((1,), application.max_atomic, kind) for kind in ("", gpu_type))
    return plain.step_s / of_type.step_s


class SchedulingPolicy(Protocol):
    """Decides in a simulation. One that `resizes` may start a job with fewer GPUs than its user requested."""

    @property
    def resizes(self) -> bool: ...

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        """Return the batch that the job uses on its GPUs.

        It may depend on these, on the job's `measurements` and on its `statistics` alone. It is called again
        only when one of them has changed.
        """
        ...

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        """Return the allocations of `jobs`, the unfinished adaptive ones, by name; absent ones get none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One round with at least one job, after its decision.

    `allocations` are those of all jobs, rigid ones included. `goodput` is what each job with GPUs achieved
    until the next round, in useful examples/s, restarts included. Of the `gpus_up` on the `nodes_up`, jobs of
    the workload own `gpus_used` and unmanaged jobs `gpus_unmanaged`. `num_jobs` are submitted and unfinished;
    `num_waiting` of them own no GPU. `solve_s` is how long the policy took.
    """

    at_s: float
    num_jobs: int
    allocations: Mapping[str, GpusByNode]
    solve_s: float
    goodput: Mapping[str, float]
    nodes_up: int
    gpus_up: int
    gpus_used: int
    gpus_unmanaged: int
    num_waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """All jobs at their ends, and all rounds with at least one job.

    `node_seconds` is the node time paid for from the first submission to the last end, by GPU type.
    """

    cluster: Cluster
    jobs: tuple[SimulatedJob, ...]
    rounds: tuple[RoundRecord, ...]
    rules: Rules = OSDI21
    node_seconds: Mapping[str, float] = field(default_factory=dict)
