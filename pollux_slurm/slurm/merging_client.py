"""A client that shows an anchor and its wings as one job (a `SlurmClient`).

What is asked of such a job is asked of the jobs that stand for it:

- To requeue it is to cancel the wings of its present start. The anchor then submits the wing that the next
  start begins with, and that wing may not start before two minutes have passed, as after a requeue.
- While it waits, to hold, reshape or release it is to do that to the wing that waits, or to the anchor where
  that waits itself.
- Its Comment is the anchor's, and to cancel it is to cancel the anchor: its wings end by themselves.

The wings are those of the last read. A late command cannot reach another start of the job: its wings have
other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from pollux_slurm.errors import JobStateError
from pollux_slurm.model import ClusterSnapshot, JobShape, JobState, SlurmJob
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.parsing.comment_terms import decode_comment
from pollux_slurm.slurm.parsing.merged_wings import merge_wings, wings_of_start


class MergingClient:
    """The jobs of `inner`, with the wings of each anchor merged."""

    def __init__(self, inner: SlurmClient, seen: dict[str, SlurmJob] | None = None) -> None:
        self._inner = inner
        # The merged jobs of the last read.
        self._seen = {} if seen is None else seen

    def version(self) -> str:
        return self._inner.version()

    def settings(self) -> Mapping[str, str]:
        return self._inner.settings()

    def controller_time(self) -> datetime:
        return self._inner.controller_time()

    def snapshot(self) -> ClusterSnapshot:
        merged = merge_wings(self._inner.snapshot())
        self._seen.clear()
        self._seen.update({job.job_id: job for job in merged.jobs if job.wings})
        return merged

    def read_job(self, job_id: str) -> SlurmJob | None:
        job = self._inner.read_job(job_id)
        terms = None if job is None else decode_comment(job.comment)
        return self.snapshot().job(job_id) if terms is not None and terms.in_place else job

    def guarded(self, guard: Callable[[], None]) -> SlurmClient:
        return MergingClient(self._inner.guarded(guard), self._seen)

    def requeue_hold(self, job_id: str, *, restart_count: int | None = None) -> None:
        if job_id in self._seen:
            self._cancel_wings(self._seen[job_id], restart_count)
        else:
            self._inner.requeue_hold(job_id, restart_count=restart_count)

    def requeue(self, job_id: str, *, restart_count: int) -> None:
        if job_id in self._seen:
            self._cancel_wings(self._seen[job_id], restart_count)
        else:
            self._inner.requeue(job_id, restart_count=restart_count)

    def requeue_failed(self, job_id: str, *, restart_count: int) -> None:
        # Slurm's own count is the anchor's.
        anchor = self._inner.read_job(job_id) if job_id in self._seen else None
        own_count = restart_count if anchor is None else anchor.restart_count
        self._inner.requeue_failed(job_id, restart_count=own_count)

    def set_begin_time(self, job_id: str, *, ahead_s: float, time_limit_s: float | None = None) -> None:
        self._inner.set_begin_time(self._waiting(job_id), ahead_s=ahead_s, time_limit_s=time_limit_s)

    def hold(self, job_id: str) -> None:
        self._inner.hold(self._waiting(job_id))

    def reshape(self, job_id: str, shape: JobShape, *, known: SlurmJob | None = None) -> None:
        waiting = self._waiting(job_id)
        wings = () if known is None else known.wings
        known = next((wing for wing in wings if wing.job_id == waiting), known)
        self._inner.reshape(waiting, shape, known=known)

    def release(self, job_id: str) -> None:
        self._inner.release(self._waiting(job_id))

    def set_comment(self, job_id: str, comment: str) -> None:
        self._inner.set_comment(job_id, comment)

    def cancel(self, job_id: str) -> None:
        self._inner.cancel(job_id)

    def submit(
        self, script: str, options: Sequence[str], arguments: Sequence[str], env: Mapping[str, str]
    ) -> str:
        return self._inner.submit(script, options, arguments, env)

    def _waiting(self, job_id: str) -> str:
        """Return the id of the wing that waits for the job's newest start; without one, the job's own."""
        job = self._seen.get(job_id)
        waiting = [] if job is None else [w for w in wings_of_start(job.wings) if w.state is JobState.PENDING]
        if job is None or job.state is not JobState.PENDING or not waiting:
            return job_id
        return waiting[0].job_id

    def _cancel_wings(self, job: SlurmJob, restart_count: int | None) -> None:
        if job.state is not JobState.RUNNING or restart_count not in (None, job.restart_count):
            raise JobStateError(
                f"job {job.job_id} is {job.state.value} in start {job.restart_count} of its training; "
                "nothing was changed"
            )
        for wing in wings_of_start(job.wings):
            if not wing.state.is_over:
                self._inner.cancel(wing.job_id)
