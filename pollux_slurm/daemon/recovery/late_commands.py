"""Recovery from late commands: those that took effect after their daemon had lost the lease.

The lease is checked before each command, but a process can be suspended between the check and the command.
Once it continues, it may requeue or hold a job that the next daemon has already restarted. Slurm does not
show who held a job. The late daemon knows, but may not give commands. So it journals a reallocation in which
only the release is missing, for the daemon with the lease.

The late daemon may also die first. So a daemon that repeats a holding command of a predecessor that may be
alive marks the reallocation as `taken_over`. If its job is found held soon after, without an open move, it is
released, once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pollux_slurm.errors import StoreError
from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    JobState,
    ReallocationCause,
    ReallocationStep,
    SlurmJob,
)
from pollux_slurm.now.known_jobs import is_recorded_job
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import JobRecord, Reallocation, Store

_log = logging.getLogger(__name__)

_REASON = "releases a job that a late command of another daemon held"
# A command without a visible effect by then had none.
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
        """Whether this command may be why the job is held now; the next daemon may have moved it since."""
        return (
            job.restart_count > self.restart_count
            if self.requeued
            else job.restart_count == self.restart_count
        )


class LateCommands:
    """The late commands of this process that are not journaled yet."""

    def __init__(self, *, slurm: SlurmClient, store: Store, clock: Callable[[], datetime]) -> None:
        self._slurm = slurm
        self._store = store
        self._clock = clock
        self._open: dict[str, LateCommand] = {}

    def add(self, late: LateCommand) -> None:
        _log.warning("job %s: a command was given after the lease was lost", late.job_id)
        self._open[late.job_id] = late

    def journal(self) -> None:
        """Journal a release for each job that a late command left held.

        A job with an open reallocation is checked again later: that one may release it. Raises `SlurmError`
        and `StoreUnavailable`.
        """
        for late in tuple(self._open.values()):
            job = self._slurm.read_job(late.job_id)
            if job is None or job.state not in (JobState.PENDING, JobState.COMPLETING):
                del self._open[late.job_id]
                continue
            if job.state is JobState.PENDING and not (job.held and late.explains(job)):
                del self._open[late.job_id]
            elif (
                job.state is JobState.PENDING and self._store.jobs.get(late.job_id).open_reallocation is None
            ):
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
    """Journal a reallocation of a held job in which only the release is missing.

    Does nothing when another reallocation has just been planned.
    """
    try:
        planned = store.journal.plan(
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
    store.journal.advance(planned.id, ReallocationStep.RESHAPED, expected=ReallocationStep.PLANNED, at=at)


# -------------------------------------------------------------- jobs that a previous daemon may have held


def jobs_maybe_held_late(
    snapshot: ClusterSnapshot, records: Iterable[JobRecord], now: datetime
) -> list[tuple[JobRecord, SlurmJob]]:
    """Return the held jobs without an open move whose last move ended a short while ago."""
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
        may_be_released = job.unschedulable_reason is None or job.anchor_waits
        if is_held and may_be_released and now - _ended_at(last) <= _FORGET_AFTER:
            found.append((record, job))
    return found


def move_explaining_hold(job: SlurmJob, moves: Sequence[Reallocation], now: datetime) -> Reallocation | None:
    """Return which of the job's `moves` (oldest first) has a possible late command that explains its hold.

    A late requeue stopped a run that this reallocation, or a later one, started. A late hold came while the
    job was pending. None where the journal has no such command, or where it was already undone.
    """
    for move in reversed(moves):
        if move.cause is ReallocationCause.LATE_COMMAND or now - _ended_at(move) > _FORGET_AFTER:
            return None
        if move.taken_over and job.restart_count >= move.from_restart_count + move.moves_running:
            return move
    return None


def _ended_at(move: Reallocation) -> datetime:
    return move.times[-1][1]
