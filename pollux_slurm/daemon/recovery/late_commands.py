"""What a daemon does that finds that it gave a command after it had lost its lease.

Each command is given with the lease just checked, but a process can be stopped between that check and Slurm:
then it requeues or holds a job, when it wakes up, that the next daemon has long brought to run again. That
daemon cannot know by Slurm: a hold by its predecessor looks like anybody's. The late one knows, and, since
it may give no command any more, leaves a reallocation in the journal where only the release is missing.

It may also die before it can. So a daemon that goes on with a reallocation of another one, which may live,
and has to repeat a command that holds the job, says so in the journal: the other may be on its way to Slurm,
too. A job of such a reallocation that is found held soon after, with no move open, was held by it: once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pollux_slurm.daemon.observe.cluster_picture import is_recorded_job
from pollux_slurm.errors import StoreError
from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    JobState,
    ReallocationCause,
    ReallocationStep,
    SlurmJob,
)
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import JobRecord, Reallocation, Store

_log = logging.getLogger(__name__)

_REASON = "brings back what a late command of another daemon held"
# When slurmctld has not shown the effect by then, there was none.
_FORGET_AFTER = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateCommand:
    """A command that may have held a job. `restart_count` is the job's just before it."""

    job_id: str
    allocation: Allocation
    requeued: bool
    restart_count: int
    at: datetime

    def explains(self, job: SlurmJob) -> bool:
        """Whether the job that waits now may wait because of it; its successor may have moved it between."""
        return (
            job.restart_count > self.restart_count
            if self.requeued
            else job.restart_count == self.restart_count
        )


class LateCommands:
    """The late commands of this process that the journal does not tell of yet."""

    def __init__(self, *, slurm: SlurmClient, store: Store, clock: Callable[[], datetime]) -> None:
        self._slurm = slurm
        self._store = store
        self._clock = clock
        self._open: dict[str, LateCommand] = {}

    def add(self, late: LateCommand) -> None:
        _log.warning("job %s: a command was given after the lease was lost", late.job_id)
        self._open[late.job_id] = late

    def journal(self) -> None:
        """Write down, for the daemon that may act, each job that a late command has left held.

        A job that has a reallocation open is looked at again later: that one may bring it back by itself.
        Raises `SlurmError` and `StoreUnavailable`.
        """
        for late in tuple(self._open.values()):
            job = self._slurm.read_job(late.job_id)
            if job is None or job.state not in (JobState.PENDING, JobState.COMPLETING):
                del self._open[late.job_id]
                continue
            if job.state is JobState.PENDING and not (job.held and late.explains(job)):
                del self._open[late.job_id]
            elif job.state is JobState.PENDING and self._store.job(late.job_id).open_reallocation is None:
                self._plan(late, job)
                del self._open[late.job_id]
            elif self._clock() - late.at > _FORGET_AFTER:
                _log.error("job %s may be held by a late command; see: scontrol release", late.job_id)
                del self._open[late.job_id]

    def _plan(self, late: LateCommand, job: SlurmJob) -> None:
        plan_release(
            self._store,
            job,
            allocation=late.allocation,
            was_requeued=late.requeued,
            at=self._clock(),
        )


def plan_release(
    store: Store,
    job: SlurmJob,
    *,
    allocation: Allocation,
    was_requeued: bool,
    at: datetime,
    cause: ReallocationCause = ReallocationCause.LATE_COMMAND,
    reason: str = _REASON,
) -> None:
    """Leave a reallocation of a held job in the journal that stands where only the release is missing.

    Without effect when another was planned this instant.
    """
    try:
        planned = store.plan_reallocation(
            job.job_id,
            source=allocation if was_requeued else Allocation(),
            target=allocation,
            moves_running=was_requeued,
            from_restart_count=job.restart_count - was_requeued,
            round_id=None,
            at=at,
            cause=cause,
            reason=reason,
        )
    except StoreError as error:
        _log.info("job %s: %s", job.job_id, error)
        return
    store.advance_reallocation(
        planned.id, ReallocationStep.RESHAPED, expected=ReallocationStep.PLANNED, at=at
    )


# ------------------------------------------------------------------------- what a predecessor may have held


def suspects(
    snapshot: ClusterSnapshot, records: Iterable[JobRecord], now: datetime
) -> list[tuple[JobRecord, SlurmJob]]:
    """Return the jobs that are held, with no move under way, after one that ended a short while ago."""
    by_id = {job.job_id: job for job in snapshot.jobs}
    found = []
    for record in records:
        job, last = by_id.get(record.slurm_job_id), record.last_reallocation
        if (
            job is None
            or last is None
            or record.open_reallocation is not None
            or record.paused_at is not None
        ):
            continue
        is_held = job.state is JobState.PENDING and job.held_since_requeue and is_recorded_job(job, record)
        if is_held and job.unschedulable_reason is None and now - _ended_at(last) <= _FORGET_AFTER:
            found.append((record, job))
    return found


def taken_over(job: SlurmJob, moves: Sequence[Reallocation], now: datetime) -> Reallocation | None:
    """Return the reallocation, of the job's `moves` (oldest first), whose late command explains its hold.

    A requeue that came late stopped a run that the reallocation, or one after it, began; a hold that came
    late met the job as it still waited. None where the journal tells of no such command, or one was undone.
    """
    for move in reversed(moves):
        if move.cause is ReallocationCause.LATE_COMMAND or now - _ended_at(move) > _FORGET_AFTER:
            return None
        if move.taken_over and job.restart_count >= move.from_restart_count + move.moves_running:
            return move
    return None


def _ended_at(move: Reallocation) -> datetime:
    return move.times[-1][1]
