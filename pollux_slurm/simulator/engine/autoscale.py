"""Goodput-driven autoscaling of a simulated cluster (Pollux, OSDI 2021, section 4.2.2).

UTILITY = Σ SPEEDUP_j / GPUs, where SPEEDUP_j is a job's goodput relative to its goodput on one GPU. It is 1
where all GPUs are used as well as a single one, and falls with every node. When it leaves its thresholds, a
binary search finds the number of nodes at which it is closest to their middle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pollux_slurm.errors import SimulationError
from pollux_slurm.simulator.engine.cluster import Cluster, SchedulingPolicy
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob


class Autoscaler(Protocol):
    """Decides on the number of nodes."""

    @property
    def limits(self) -> ScalingLimits:
        """Return the limits that apply to every decision."""
        ...

    def num_nodes(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster, nodes: Sequence[int], present: int
    ) -> int:
        """Return how many of `nodes` the cluster should have; the first `present` of them it has now.

        `nodes` are in the order in which they are kept.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLimits:
    """The initial and least number of nodes. A new one is paid for at once and is up after `boot_s`."""

    min_nodes: int = 1
    boot_s: float = 120.0

    def __post_init__(self) -> None:
        if self.min_nodes < 1 or not 0 <= self.boot_s < math.inf:
            raise SimulationError(
                "a cluster that grows has at least one node, and boots in 0 s or more, not "
                f"{self.min_nodes} and {self.boot_s:g} s"
            )


class GoodputPolicy(SchedulingPolicy, Protocol):
    """A policy that also predicts a job's goodput, and whose decisions do not depend on earlier calls."""

    def goodput(self, job: SimulatedJob, num_nodes: int, num_gpus: int) -> float | None:
        """Return a job's predicted goodput in examples/s; None without a model."""
        ...


class UtilityAutoscaler:
    """Keeps UTILITY between `low` and `high`; `policy` predicts it for other numbers of nodes.

    With a policy whose agents report throughput as goodput, this is a throughput-based autoscaler.
    """

    def __init__(
        self,
        policy: GoodputPolicy,
        *,
        low: float = 0.55,
        high: float = 0.75,
        limits: ScalingLimits | None = None,
    ) -> None:
        if not 0 < low < high <= 1:
            raise SimulationError(f"utilities lie in 0 < low < high ≤ 1, not {low:g} and {high:g}")
        self._policy, self._low, self._high = policy, low, high
        self._limits = ScalingLimits() if limits is None else limits

    @property
    def limits(self) -> ScalingLimits:
        return self._limits

    def num_nodes(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster, nodes: Sequence[int], present: int
    ) -> int:
        if not jobs:
            return self._limits.min_nodes
        low, high = self._limits.min_nodes, len(nodes)
        now = self._utility(now_s, jobs, cluster, nodes[:present])
        if self._low <= now <= self._high:
            return present
        middle = (self._low + self._high) / 2
        found: dict[int, float] = {present: now}
        while low <= high:
            count = (low + high) // 2
            if count not in found:
                found[count] = self._utility(now_s, jobs, cluster, nodes[:count])
            if found[count] > middle:
                low = count + 1
            else:
                high = count - 1
        return min(found, key=lambda count: (abs(found[count] - middle), count))

    def _utility(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster, nodes: Sequence[int]
    ) -> float:
        available = [0] * cluster.num_nodes
        for node in nodes:
            available[node] = cluster.node_gpus[node]
        owned = [job.allocation for job in jobs]
        for job in jobs:
            if any(available[node] == 0 for node, _ in job.allocation):
                job.allocation = ()
        try:
            given = self._policy.allocate(now_s, jobs, cluster.with_available(available))
        finally:
            for job, allocation in zip(jobs, owned, strict=True):
                job.allocation = allocation
        return sum(self._speedup(job, given.get(job.job.name, ())) for job in jobs) / sum(available)

    def _speedup(self, job: SimulatedJob, allocation: GpusByNode) -> float:
        num_gpus = sum(gpus for _, gpus in allocation)
        if num_gpus == 0:
            return 0.0
        alone = self._policy.goodput(job, 1, 1)
        there = self._policy.goodput(job, len(allocation), num_gpus)
        return num_gpus if not alone or there is None else there / alone


class NodeSupply:
    """The nodes of the largest cluster that exist at a time. Without an autoscaler, all of them always do."""

    def __init__(self, autoscaler: Autoscaler | None, cluster: Cluster) -> None:
        self._autoscaler, self._cluster = autoscaler, cluster
        self._up_at_s: dict[int, float] = dict.fromkeys(range(cluster.num_nodes), 0.0)
        self._types = cluster.node_types
        self.paid_s: dict[str, float] = dict.fromkeys(cluster.gpu_types, 0.0)
        if autoscaler is None:
            return
        if len(cluster.gpu_types) > 1:
            raise SimulationError("a cluster that grows and shrinks has one GPU type")
        if autoscaler.limits.min_nodes > cluster.num_nodes:
            raise SimulationError(
                f"there are to be {autoscaler.limits.min_nodes} nodes at least, but the cluster has "
                f"{cluster.num_nodes} at most"
            )
        self._up_at_s = dict.fromkeys(range(autoscaler.limits.min_nodes), 0.0)

    def pay(self, duration_s: float) -> None:
        """Pay for `duration_s` of all nodes that exist, including those that boot."""
        for node in self._up_at_s:
            self.paid_s[self._types[node]] += duration_s

    def up(self, now_s: float) -> frozenset[int]:
        """Return the nodes that can be used."""
        return frozenset(node for node, at_s in self._up_at_s.items() if at_s <= now_s)

    def scale(
        self, now_s: float, jobs: Sequence[SimulatedJob], busy: Mapping[int, int], kept: frozenset[int]
    ) -> None:
        """Call the autoscaler, then request nodes or give back the least used ones.

        `busy` are the GPUs in use of each node; `kept` nodes cannot be given back.
        """
        if self._autoscaler is None:
            return
        limits = self._autoscaler.limits
        order = sorted(
            range(self._cluster.num_nodes),
            key=lambda node: (
                node not in kept,
                node not in self._up_at_s,
                self._up_at_s.get(node, 0.0) > now_s,
                -busy.get(node, 0),
                node,
            ),
        )
        present = len(self._up_at_s)
        wanted = self._autoscaler.num_nodes(now_s, jobs, self._cluster, order, present)
        wanted = max(min(wanted, self._cluster.num_nodes), limits.min_nodes, len(kept))
        there = set(order[:wanted])
        self._up_at_s = {node: at_s for node, at_s in self._up_at_s.items() if node in there}
        for node in there:
            self._up_at_s.setdefault(node, now_s + limits.boot_s)
