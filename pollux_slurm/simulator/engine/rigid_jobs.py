"""The jobs of a simulation that the policy does not resize: rigid jobs of the workload, and unmanaged ones.

They start as Slurm starts them, first come, first served with conservative backfill, and are never moved.
Adaptive jobs are in the same queue, with the fewest GPUs that they may start with. The GPUs of a running one
are expected back at its user's limit.

A policy that resizes jobs lends them GPUs, as the daemon does: what a job has beyond its user's size is there
for the queue at any time. New adaptive jobs behind a rigid one wait, but those that backfill starts. Without
resizing, no job starts or grows on GPUs that are reserved for an earlier one.

Nothing is reserved on the GPUs of an adaptive job beyond its limit. Were they expected back at any moment,
the last such job would run on one GPU while all others are idle. Were they never expected back, small rigid
jobs would pass large ones for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator.engine.backfill import Running, Waiting, backfill, pack_pool, pool_sizes
from pollux_slurm.simulator.engine.cluster_rules import UnmanagedJob
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob

# The estimate of a job without one.
_UNKNOWN_S = 1e9


@dataclass(slots=True, kw_only=True, eq=False)
class RigidJob:
    """A job of a fixed size. `limit_s` is its user's estimate; `job` is None for an unmanaged one."""

    name: str
    submitted_s: float
    num_gpus: int
    limit_s: float
    job: SimulatedJob | None = None
    duration_s: float = 0.0
    allocation: GpusByNode = ()
    started_s: float = 0.0

    def is_over(self, now_s: float) -> bool:
        if self.job is not None:
            return self.job.finished_s is not None
        return bool(self.allocation) and self.started_s + self.duration_s <= now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStart:
    """What Slurm starts in a round, and what it leaves.

    `available` are the GPUs of each node for adaptive jobs, their own among them. `unreserved` are those of
    them that no queued job is to have later: Slurm may start jobs there. `waiting` are the names of new
    adaptive jobs that may not start yet.
    """

    started: Sequence[RigidJob] = ()
    available: Sequence[int]
    unreserved: Sequence[int]
    waiting: frozenset[str] = frozenset()


class RigidJobs:
    """All rigid and unmanaged jobs. `types` are the nodes' GPU types, `order` is the users' preference."""

    def __init__(
        self,
        rigid: Sequence[SimulatedJob],
        others: Sequence[UnmanagedJob],
        *,
        types: Sequence[str],
        order: Sequence[str],
        limit_s: Callable[[SimulatedJob], float],
        estimate_factor: float,
    ) -> None:
        found = [
            RigidJob(
                name=job.job.name,
                submitted_s=job.job.submitted_s,
                num_gpus=job.job.num_replicas,
                limit_s=limit_s(job) * estimate_factor,
                job=job,
            )
            for job in rigid
        ]
        found += [
            RigidJob(
                name=f"unmanaged {index}",
                submitted_s=other.submitted_s,
                num_gpus=other.num_gpus,
                limit_s=other.duration_s * estimate_factor,
                duration_s=other.duration_s,
            )
            for index, other in enumerate(others)
        ]
        self._unfinished = sorted(found, key=lambda one: one.submitted_s)
        self._types, self._order = types, order
        self._estimate_s, self._estimate_factor = limit_s, estimate_factor

    def release(self, now_s: float) -> None:
        """Remove ended jobs, and update the allocations of rigid jobs, which may have lost a node."""
        self._unfinished = [one for one in self._unfinished if not one.is_over(now_s)]
        for one in self._unfinished:
            if one.job is not None:
                one.allocation = one.job.allocation

    def fail(self, nodes: Mapping[int, float]) -> None:
        """Requeue unmanaged jobs on failed nodes."""
        for one in self._unfinished:
            if one.job is None and any(node in nodes for node, _ in one.allocation):
                one.allocation = ()

    def owned_gpus(self, *, unmanaged_only: bool = False) -> list[int]:
        """Return the GPUs that they own of each node."""
        found = [0] * len(self._types)
        for one in self._unfinished:
            if one.job is None or not unmanaged_only:
                for node, gpus in one.allocation:
                    found[node] += gpus
        return found

    def start(
        self,
        now_s: float,
        capacity: Sequence[int],
        adaptive: Sequence[SimulatedJob],
        *,
        first: bool,
        resizes: bool,
    ) -> QueueStart:
        """Start the jobs that can start on the `capacity` GPUs of each node.

        They may take the GPUs that adaptive jobs do not use, with `resizes` those that are lent, with `first`
        all. For adaptive jobs remain those that these own, those of adaptive jobs that backfill starts now
        (fewer than requested, with `resizes`), and the rest: without `resizes` only what is reserved for no
        queued job.
        """
        available = [gpus - used for gpus, used in zip(capacity, self.owned_gpus(), strict=True)]
        queue = {one.name: one for one in self._unfinished if not one.allocation and one.submitted_s <= now_s}
        if not queue:
            everything = [max(gpus, 0) for gpus in available]
            return QueueStart(available=everything, unreserved=everything)
        present = [job for job in adaptive if job.allocation]
        free = _without(available, [job.allocation for job in present])
        kept = [] if first else [(job, own_gpus(job) if resizes else job.allocation) for job in present]
        offered = _without(available, [allocation for _, allocation in kept])
        running = self._running_rigid() + self._running_adaptive(now_s, kept)
        order = [(one.submitted_s, name, one.num_gpus, one.limit_s) for name, one in queue.items()]
        if not first:
            order += self._queued_adaptive(adaptive, resizes=resizes)
        waiting = {
            name: Waiting(num_gpus=num_gpus, limit_s=limit_s)
            for _, name, num_gpus, limit_s in sorted(order, key=lambda one: one[0])
        }
        found = backfill(now_s, pool_sizes(offered, self._types, self._order), running, waiting)
        spare = dict(found.spare)
        started = []
        for name, kind in found.pools.items():
            if name not in queue:
                spare[kind] += waiting[name].num_gpus
                continue
            one = queue.pop(name)
            unused = one.num_gpus <= pool_sizes(free, self._types, self._order)[kind]
            one.allocation = pack_pool(one.num_gpus, free if unused else offered, self._types, kind)
            one.started_s = now_s
            for node, gpus in one.allocation:
                for left in (available, free, offered):
                    left[node] -= gpus
            started.append(one)
        unreserved = list(available)
        if not first:
            self._keep(unreserved, free, spare)
        return QueueStart(
            started=started,
            available=[max(gpus, 0) for gpus in (available if resizes else unreserved)],
            unreserved=[max(gpus, 0) for gpus in unreserved],
            waiting=_behind(queue.values(), adaptive, found.pools) if resizes and not first else frozenset(),
        )

    def _running_rigid(self) -> list[Running]:
        return [
            Running(
                pool=self._types[one.allocation[0][0]],
                num_gpus=one.num_gpus,
                until_s=one.started_s + one.limit_s,
            )
            for one in self._unfinished
            if one.allocation
        ]

    def _queued_adaptive(
        self, adaptive: Sequence[SimulatedJob], *, resizes: bool
    ) -> list[tuple[float, str, int, float]]:
        """Return submission, name, GPUs and limit of adaptive jobs without GPUs."""
        return [
            (
                job.job.submitted_s,
                job.job.name,
                job.application.least_gpus if resizes else job.job.num_replicas,
                self._limit_s(job),
            )
            for job in adaptive
            if not job.allocation
        ]

    def _limit_s(self, job: SimulatedJob) -> float:
        """Return the time limit of an adaptive job; `_UNKNOWN_S` without traces for its size."""
        try:
            return self._estimate_s(job) * self._estimate_factor
        except TraceError:
            return _UNKNOWN_S

    def _running_adaptive(
        self, now_s: float, kept: Sequence[tuple[SimulatedJob, GpusByNode]]
    ) -> list[Running]:
        """Return when the GPUs that jobs keep are expected back, but of jobs that exceeded their limit."""
        found = []
        for job, allocation in kept:
            began_s = now_s if job.first_started_s is None else job.first_started_s
            if (until_s := began_s + self._limit_s(job)) > now_s:
                found += [
                    Running(pool=self._types[node], num_gpus=gpus, until_s=until_s)
                    for node, gpus in allocation
                ]
        return found

    def _keep(self, available: list[int], free: Sequence[int], spare: Mapping[str, int]) -> None:
        """Subtract reserved GPUs (free, not spare) from `available`, on the nodes with the fewest first."""
        kept = {kind: gpus - spare[kind] for kind, gpus in pool_sizes(free, self._types, self._order).items()}
        for node in sorted(range(len(free)), key=lambda node: (free[node], node)):
            taken = min(max(free[node], 0), max(kept[self._types[node]], 0))
            available[node] -= taken
            kept[self._types[node]] -= taken


def has_lent_gpus(job: SimulatedJob) -> bool:
    """Return whether a job has more GPUs than its user's size."""
    return job.num_gpus > job.job.num_replicas


def own_gpus(job: SimulatedJob) -> GpusByNode:
    """Return what of its allocation a job keeps when GPUs are needed: its user's size, where it has most."""
    left, kept = job.job.num_replicas, []
    for node, gpus in sorted(job.allocation, key=lambda one: -one[1]):
        kept.append((node, min(gpus, left)))
        left -= kept[-1][1]
    return tuple((node, gpus) for node, gpus in kept if gpus)


def _behind(
    queue: Iterable[RigidJob], adaptive: Sequence[SimulatedJob], starts: Container[str]
) -> frozenset[str]:
    """Return the new adaptive jobs behind a rigid one of `queue`, but those that backfill `starts`."""
    first_s = min((one.submitted_s for one in queue), default=math.inf)
    return frozenset(
        job.job.name
        for job in adaptive
        if job.num_restarts is None and job.job.submitted_s > first_s and job.job.name not in starts
    )


def _without(gpus: Sequence[int], allocations: Iterable[GpusByNode]) -> list[int]:
    """Return the GPUs of each node without those of `allocations`."""
    left = list(gpus)
    for allocation in allocations:
        for node, used in allocation:
            left[node] -= used
    return left
