"""Nodes that come back after slurmctld had given them up, and jobs that may have left processes there.

Slurm requeues the jobs of a node that it loses (DOWN), while their processes may go on there. When the node
comes back Slurm ends them, which takes up to KillWait and as long as an epilog runs. Meanwhile a job must not
start where its own leftover is. Slurm 22.05 to 24.11 does not tell the two runs apart: the late end of the
leftover's script counts as the end of the new run (with exit code 0 the job is COMPLETED), slurmd refuses the
second copy of the job, which drains the node, and the late end of the epilog takes the node away from the
running job, after which the next `srun` of its script ends slurmctld (in `build_job_info_resp`; not from
25.05 on).

So a node that came back takes nothing new for a while, and a job that Slurm requeued off a lost node waits
for a place by name: otherwise Slurm may start it there within a second of the node's return.

What happened while nobody looked, before this daemon was started or held the lease again, Slurm tells in
part: a node's time of last use is also that of its return. A node whose last use is later than the requeue of
a job that waits may be one that lost this job and came back, and is taken for one. But not by a job that a
reallocation has requeued, as the journal says: such a one has left its node in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
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
# How long a job is kept from starting by itself at a time, and when that is renewed. Slurm's own delay after
# a requeue is 121 s (22.05).
WAIT_S = 180.0
RENEWED_AT_S = 90.0
# A node may stay lost for weeks. Slurm starts others before a job that may not begin yet, so no job is kept
# waiting for longer than this after its requeue.
WAITS_AT_MOST = timedelta(hours=1)


def remembering(slurm: SlurmClient, records: Callable[[], Iterable[JobRecord]]) -> SlurmClient:
    """Return the client with snapshots in which a node that has just come back is not available.

    `records` are the store's of active jobs, asked for where a job that waits may tell of a lost node:
    a snapshot may then raise `StoreError`, too.
    """
    return cast(SlurmClient, _Remembering(slurm, records))


class _Remembering:
    """Delegates to a client; remembers between snapshots which nodes were lost.

    `_known` are the nodes that were looked at a short while ago.
    """

    def __init__(self, slurm: SlurmClient, records: Callable[[], Iterable[JobRecord]]) -> None:
        self._slurm = slurm
        self._records = records
        self._looked_at: datetime | None = None
        self._known: frozenset[str] = frozenset()
        self._lost: set[str] = set()
        self._back_at: dict[str, datetime] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slurm, name)

    def snapshot(self) -> ClusterSnapshot:
        snapshot = self._slurm.snapshot()
        if self._looked_at is None or snapshot.read_at - self._looked_at > SETTLING:
            self._known = frozenset()
        self._back_at |= self._may_be_back(snapshot)
        self._looked_at = snapshot.read_at
        self._known = frozenset(node.name for node in snapshot.nodes)
        nodes = tuple(self._remembered(node, snapshot.read_at) for node in snapshot.nodes)
        return dataclasses.replace(snapshot, nodes=nodes)

    def _may_be_back(self, snapshot: ClusterSnapshot) -> dict[str, datetime]:
        """Return since when nodes may be back that were not looked at lately.

        Each is one that was last used after a job that waits was requeued, both by slurmctld's clock.
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
        by_us = {record.slurm_job_id: record for record in self._records()}
        first_at = min(
            (
                job.submitted_at
                for job in requeued
                if job.submitted_at is not None and not _requeued_by_reallocation(job, by_us.get(job.job_id))
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
    """Whether the requeue that a job waits since is that of its last reallocation: a move or a pause."""
    last = None if record is None else record.last_reallocation
    return (
        last is not None
        and last.entered_at(ReallocationStep.REQUEUED) is not None
        and job.restart_count == last.from_restart_count + 1
    )


def unsettled_nodes(snapshot: ClusterSnapshot) -> frozenset[str]:
    """Return the nodes on which processes may run that Slurm has given up: lost ones, and those just back."""
    return frozenset(node.name for node in snapshot.nodes if node.settling or not node.responds)


def may_have_leftover(place: Allocation, unsettled: frozenset[str]) -> bool:
    """Whether a job that ran there may still have processes on an unsettled node."""
    return not unsettled.isdisjoint(place.nodes)


def last_place(history: Iterable[AllocationRecord]) -> Allocation:
    """Return where a job ran last, nothing if it never did."""
    return next((held.allocation for held in reversed(tuple(history)) if held.allocation), Allocation())


def is_to_wait(job: SlurmJob, now: datetime) -> bool:
    """Whether Slurm may start a waiting job before the next rounds have looked at it, soon after its requeue.

    A requeue resets the time of submission.
    """
    if job.state is not JobState.PENDING or (job.begins_at or now) >= now + timedelta(seconds=RENEWED_AT_S):
        return False
    return job.submitted_at is None or now - job.submitted_at < WAITS_AT_MOST
