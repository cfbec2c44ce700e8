"""Nodes that return after slurmctld had marked them DOWN, and jobs that may have left processes there.

Slurm requeues the jobs of a node that goes DOWN, but their processes may continue there. When the node
returns, Slurm kills these *leftover* processes. That takes up to KillWait plus the epilog. A job must not
start beside its own leftover, because Slurm 22.05 to 24.11 confuses the two runs:

- The late end of the leftover's script counts as the end of the new run. With exit code 0 it is COMPLETED.
- slurmd refuses the second copy of the job, and the node is drained.
- The late end of the epilog frees the running job's node. The next `srun` of its script then crashes
  slurmctld in `build_job_info_resp` (not from 25.05 on).

So a returned node takes nothing new for a while. A job that Slurm requeued off a lost node waits until it is
given nodes by name, since Slurm may start it there within a second of the node's return.

A daemon that just started, or just got the lease back, has not seen nodes go down. A node's time of last use
is also its time of return. So a node that was last used after the requeue of a pending job may have lost that
job, and counts as returned. A job that a reallocation requeued does not count: it left no processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from typing import Any, cast

from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    JobState,
    ReallocationStep,
    SlurmJob,
    SlurmNode,
)
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import AllocationRecord, JobRecord

# KillWait is 30 s unless the site sets it; the rest is for an epilog.
SETTLING = timedelta(seconds=60)
# How far ahead a job's begin time is set, and how near it must be to be set again. Slurm itself delays a
# requeued job by 121 s (22.05).
WAIT_S = 180.0
RENEWED_AT_S = 90.0
# The longest that a job is kept waiting after its requeue: a node may stay lost for weeks, and Slurm starts
# other jobs first.
WAITS_AT_MOST = timedelta(hours=1)


def track_returned_nodes(slurm: SlurmClient, records: Callable[[], Iterable[JobRecord]]) -> SlurmClient:
    """Return a client whose snapshots show nodes that just returned as not available.

    `records` reads the store's active jobs. It is called when a pending job may have lost its node, so a
    snapshot may also raise `StoreError`.
    """
    return cast(SlurmClient, _ReturnedNodesTracker(slurm, records))


class _ReturnedNodesTracker:
    """Delegates to a client, and remembers between snapshots which nodes were lost.

    `_known` are the nodes of the last snapshot, if that is recent.
    """

    def __init__(self, slurm: SlurmClient, records: Callable[[], Iterable[JobRecord]]) -> None:
        self._slurm = slurm
        self._records = records
        self._last_read_at: datetime | None = None
        self._known: frozenset[str] = frozenset()
        self._lost: set[str] = set()
        self._back_at: dict[str, datetime] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slurm, name)

    def snapshot(self) -> ClusterSnapshot:
        return self._tracked(self._slurm.snapshot())

    def refresh(self, job_ids: Collection[str] | None = None) -> ClusterSnapshot:
        return self._tracked(self._slurm.refresh(job_ids))

    def _tracked(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        if self._last_read_at is None or snapshot.read_at - self._last_read_at > SETTLING:
            self._known = frozenset()
        self._back_at |= self._may_be_back(snapshot)
        self._last_read_at = snapshot.read_at
        self._known = frozenset(node.name for node in snapshot.nodes)
        nodes = tuple(self._remembered(node, snapshot.read_at) for node in snapshot.nodes)
        return dataclasses.replace(snapshot, nodes=nodes)

    def _may_be_back(self, snapshot: ClusterSnapshot) -> dict[str, datetime]:
        """Return the times at which nodes outside `_known` may have returned.

        Each was last used after the requeue of a pending job; both times are slurmctld's.
        """
        used_at = {
            node.name: min(node.last_busy_at, snapshot.read_at)
            for node in snapshot.nodes
            if node.name not in self._known
            and node.last_busy_at is not None
            and snapshot.read_at - node.last_busy_at < SETTLING
        }
        last_used_at = max(used_at.values(), default=None)
        requeued = [
            job
            for job in snapshot.jobs
            if job.restart_count > 0
            and job.state in (JobState.PENDING, JobState.COMPLETING)
            and job.submitted_at is not None
            and last_used_at is not None
            and job.submitted_at < last_used_at
        ]
        if not requeued:
            return {}
        by_id = {record.slurm_job_id: record for record in self._records()}
        first_at = min(
            (
                job.submitted_at
                for job in requeued
                if job.submitted_at is not None and not _requeued_by_reallocation(job, by_id.get(job.job_id))
            ),
            default=None,
        )
        return {name: at for name, at in used_at.items() if first_at is not None and first_at < at}

    def _remembered(self, node: SlurmNode, now: datetime) -> SlurmNode:
        if not node.responds:
            self._lost.add(node.name)
            self._back_at.pop(node.name, None)
            return node
        if node.name in self._lost:
            self._lost.remove(node.name)
            self._back_at[node.name] = now
        back_at = self._back_at.get(node.name)
        if back_at is None:
            return node
        if now - back_at >= SETTLING:
            del self._back_at[node.name]
            return node
        state = f"{node.state} (back for {(now - back_at).total_seconds():.0f} s)"
        return dataclasses.replace(node, available=False, settling=True, state=state)


def _requeued_by_reallocation(job: SlurmJob, record: JobRecord | None) -> bool:
    """Whether a job's last requeue was that of its last reallocation: a move or a pause."""
    last = None if record is None else record.last_reallocation
    return (
        last is not None
        and last.entered_at(ReallocationStep.REQUEUED) is not None
        and job.restart_count == last.from_restart_count + 1
    )


def unsettled_nodes(snapshot: ClusterSnapshot) -> frozenset[str]:
    """Return the nodes that may run leftover processes: lost nodes, and those that just returned."""
    return frozenset(node.name for node in snapshot.nodes if node.settling or not node.responds)


def may_have_leftover(ran_on: Allocation, unsettled: frozenset[str]) -> bool:
    """Whether a job that `ran_on` these nodes may have leftover processes on an unsettled one."""
    return not unsettled.isdisjoint(ran_on.nodes)


def last_allocation(history: Iterable[AllocationRecord]) -> Allocation:
    """Return the allocation in which a job ran last, an empty one if it never ran."""
    return next((past.allocation for past in reversed(tuple(history)) if past.allocation), Allocation())


def may_start_too_soon(job: SlurmJob, now: datetime) -> bool:
    """Whether Slurm may start a recently requeued pending job before the next rounds.

    A requeue resets the time of submission.
    """
    if job.state is not JobState.PENDING or (job.begins_at or now) >= now + timedelta(seconds=RENEWED_AT_S):
        return False
    return job.submitted_at is None or now - job.submitted_at < WAITS_AT_MOST
