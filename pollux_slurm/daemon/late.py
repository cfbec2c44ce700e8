"""What a daemon does that finds that it gave a command after it had lost its lease.

Each command is given with the lease just checked, but a process can be stopped between that check and Slurm:
then it requeues or holds a job, when it wakes up, that the next daemon has long brought to run again. That
daemon cannot know: a hold by its predecessor looks like anybody's. The late one knows, and, since it may give
no command any more, leaves a reallocation in the journal that stands where only the release is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pollux_slurm.errors import StoreError
from pollux_slurm.model import Allocation, JobState, ReallocationStep, SlurmJob
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract import Store

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
        try:
            planned = self._store.plan_reallocation(
                late.job_id,
                source=late.allocation if late.requeued else Allocation(),
                target=late.allocation,
                moves_running=late.requeued,
                from_restart_count=job.restart_count - late.requeued,
                round_id=None,
                at=self._clock(),
                reason=_REASON,
            )
        except StoreError as error:  # another was planned this instant
            _log.info("job %s: %s", late.job_id, error)
            return
        self._store.advance_reallocation(
            planned.id,
            ReallocationStep.RESHAPED,
            expected=ReallocationStep.PLANNED,
            at=self._clock(),
        )
