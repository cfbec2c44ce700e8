"""A client that shows an anchor and its wings as one job (a `SlurmClient`).

What is asked of such a job is asked of the jobs that stand for it:

- To requeue it is to cancel its wings. The anchor then submits the wing that the next
  start begins with, which may not start before two minutes have passed, as after a requeue. Until it has, the
  job is COMPLETING: there is nothing to hold, to reshape or to release.
- Where its anchor must leave its node (`anchor_nodes`), the anchor is requeued, not held, and ends its wings.
- While it waits, to hold, reshape or release it is to do that to the wing that waits. A new shape lets that
  start at once: it is a job of its own, and cannot be killed by the end of the last start.
- Where the anchor waits itself, it is held and released as any job, and cannot be reshaped: it has no GPUs.
- Its Comment is the anchor's, and to cancel it is to cancel the anchor: its wings end by themselves.

A wing's own number names that wing alone: to cancel it is how the job is to lose it.

The wings are those of the last read. A late command cannot reach another start of the job: its wings have
other numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from pollux_slurm.errors import JobStateError
from pollux_slurm.model import ClusterSnapshot, JobShape, JobState, SlurmJob
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.parsing.anchor_nodes import Clearances
from pollux_slurm.slurm.parsing.comment_terms import decode_comment
from pollux_slurm.slurm.parsing.merged_wings import may_be_anchor, merge_wings, wings_of_start

# The owner may have thousands of them. What waits on ends by itself, or as a stray wing.
_MAX_CANCELLED_WAITING = 64


class _Seen(NamedTuple):
    """A merged job of the last read, and its anchor alone."""

    job: SlurmJob
    anchor: SlurmJob


class MergingClient:
    """The jobs of `inner`, with the wings of each anchor merged."""

    def __init__(
        self,
        inner: SlurmClient,
        seen: dict[str, _Seen] | None = None,
        clearances: Clearances | None = None,
    ) -> None:
        self._inner = inner
        self._seen = {} if seen is None else seen
        self._clearances = clearances or Clearances()
        self._anchors: frozenset[str] | None = None  # None until the first read

    def version(self) -> str:
        return self._inner.version()

    def settings(self) -> Mapping[str, str]:
        return self._inner.settings()

    def configuration(self) -> str:
        return self._inner.configuration()

    def controller_time(self) -> datetime:
        return self._inner.controller_time()

    def snapshot(self) -> ClusterSnapshot:
        return self._merged(self._inner.snapshot())

    def refresh(self, job_ids: Collection[str] | None = None) -> ClusterSnapshot:
        # An anchor may have submitted wings that no read has shown yet.
        if job_ids is None or self._anchors is None or not self._anchors.isdisjoint(job_ids):
            return self._merged(self._inner.refresh())
        return self._merged(self._inner.refresh(job_ids))

    def _merged(self, shown: ClusterSnapshot) -> ClusterSnapshot:
        self._anchors = frozenset(job.job_id for job in shown.jobs if may_be_anchor(job))
        merged = merge_wings(shown, self._clearances)
        found = {job.job_id: job for job in merged.jobs if job.wings}
        self._seen.clear()
        self._seen.update(
            {job.job_id: _Seen(found[job.job_id], job) for job in shown.jobs if job.job_id in found}
        )
        return merged

    def read_job(self, job_id: str) -> SlurmJob | None:
        job = self._inner.read_job(job_id)
        terms = None if job is None else decode_comment(job.comment)
        return self.snapshot().job(job_id) if terms is not None and terms.in_place else job

    def guarded(self, guard: Callable[[], None]) -> SlurmClient:
        return MergingClient(self._inner.guarded(guard), self._seen, self._clearances)

    def requeue_hold(self, job_id: str, *, restart_count: int | None = None) -> None:
        if job_id in self._seen:
            self._stop(self._seen[job_id], restart_count)
        else:
            self._inner.requeue_hold(job_id, restart_count=restart_count)

    def requeue(self, job_id: str, *, restart_count: int) -> None:
        if job_id in self._seen:
            self._stop(self._seen[job_id], restart_count)
        else:
            self._inner.requeue(job_id, restart_count=restart_count)

    def requeue_failed(self, job_id: str, *, restart_count: int) -> None:
        # Slurm's own count is the anchor's.
        anchor = self._inner.read_job(job_id) if job_id in self._seen else None
        own_count = restart_count if anchor is None else anchor.restart_count
        self._inner.requeue_failed(job_id, restart_count=own_count)

    def set_begin_time(self, job_id: str, *, ahead_s: float, time_limit_s: float | None = None) -> None:
        self._inner.set_begin_time(self._in_queue(job_id), ahead_s=ahead_s, time_limit_s=time_limit_s)

    def hold(self, job_id: str) -> None:
        self._inner.hold(self._in_queue(job_id))

    def reshape(self, job_id: str, shape: JobShape, *, known: SlurmJob | None = None) -> None:
        wing = self._waiting_wing(job_id)
        if wing is not None:
            # The begin time is the anchor's, which sets it so that a daemon has time for this.
            self._inner.reshape(wing.job_id, shape, known=dataclasses.replace(wing, begins_at=None))
        elif self._is_anchor(job_id, known):
            raise JobStateError(f"job {job_id}: no wing of it waits for GPUs; nothing was changed")
        else:
            self._inner.reshape(job_id, shape, known=known)

    def release(self, job_id: str) -> None:
        self._inner.release(self._in_queue(job_id))

    def set_priority(self, job_id: str, priority: int) -> None:
        self._inner.set_priority(self._in_queue(job_id), priority)

    def restore_priority(self, job_id: str) -> None:
        seen = self._seen.get(job_id)
        if seen is None or seen.anchor.state is JobState.PENDING:
            self._inner.restore_priority(job_id)
            return
        for wing in wings_of_start(seen.job.wings):
            if wing.state in (JobState.PENDING, JobState.RUNNING):
                self._inner.restore_priority(wing.job_id)

    def create_reservation(self, name: str, nodes: Sequence[str], *, minutes: int) -> None:
        self._inner.create_reservation(name, nodes, minutes=minutes)

    def delete_reservation(self, name: str) -> None:
        self._inner.delete_reservation(name)

    def set_comment(self, job_id: str, comment: str) -> None:
        self._inner.set_comment(job_id, comment)

    def cancel(self, job_id: str) -> None:
        self._inner.cancel(job_id)

    def submit(
        self, script: str, options: Sequence[str], arguments: Sequence[str], env: Mapping[str, str]
    ) -> str:
        return self._inner.submit(script, options, arguments, env)

    def _in_queue(self, job_id: str) -> str:
        """Return the number of the job that waits in the queue for this job: a wing, or itself."""
        wing = self._waiting_wing(job_id)
        return job_id if wing is None else wing.job_id

    def _waiting_wing(self, job_id: str) -> SlurmJob | None:
        """Return the wing that waits for the job's newest start; None where its anchor waits, or nothing."""
        seen = self._seen.get(job_id)
        if seen is None or seen.job.state is not JobState.PENDING or seen.anchor.state is JobState.PENDING:
            return None
        return next(wing for wing in wings_of_start(seen.job.wings) if wing.state is JobState.PENDING)

    def _is_anchor(self, job_id: str, known: SlurmJob | None) -> bool:
        terms = None if known is None else decode_comment(known.comment)
        return job_id in self._seen or (terms is not None and terms.in_place)

    def _stop(self, seen: _Seen, restart_count: int | None) -> None:
        job = seen.job
        # An anchor may also leave while its training waits.
        allowed = {JobState.RUNNING, *([JobState.PENDING] if job.anchor_leaves_because is not None else [])}
        if job.state not in allowed or restart_count not in (None, job.restart_count):
            raise JobStateError(
                f"job {job.job_id} is {job.state.value} in start {job.restart_count + 1} of its training; "
                "nothing was changed"
            )
        if job.anchor_leaves_because is not None:
            self._inner.requeue(job.job_id, restart_count=seen.anchor.restart_count)
            self._clearances.note_left(job.job_id)
            return
        # Wings of another start have no processes of the training, and must not keep their GPUs.
        of_start = {wing.job_id for wing in wings_of_start(job.wings)}
        left = [wing for wing in job.wings if not wing.state.is_over]
        with_gpus = [wing for wing in left if wing.allocation]
        without = [wing for wing in left if not wing.allocation and wing.job_id in of_start]
        for wing in (*with_gpus, *without[:_MAX_CANCELLED_WAITING]):
            self._inner.cancel(wing.job_id)
