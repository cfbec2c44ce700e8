"""What a round journals whatever it decides: jobs that need a start, a release, or another slice of time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pollux_slurm.config import DaemonConfig
from pollux_slurm.daemon.decide import unanswered_requests
from pollux_slurm.daemon.decide.concurrent_moves import Mover, Slots
from pollux_slurm.daemon.enact import time_limits
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob
from pollux_slurm.daemon.recovery import failed_moves, failed_starts, late_commands
from pollux_slurm.model import Allocation, ClusterSnapshot, JobState, ReallocationCause, SlurmJob
from pollux_slurm.store.contract.interface import JobRecord, Store

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Care:
    """Looks after the jobs of one round. `guard` raises when this daemon may not act."""

    store: Store
    guard: Callable[[], None]
    config: DaemonConfig
    clock: Callable[[], datetime]
    snapshot: ClusterSnapshot
    records: Sequence[JobRecord]
    _slots: Slots = field(init=False)
    _users_that_answer: frozenset[str] = field(init=False)
    _to_start_again: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._slots = Slots(
            self.config.max_in_flight,
            users={record.user_name for record in self.records},
            taken_by=[self._mover(record) for record in self.records if record.open_reallocation is not None],
        )
        self._users_that_answer = frozenset(
            record.user_name for record in self.records if unanswered_requests.has_answered(record)
        )

    def journal(self, now: datetime) -> Callable[[JobRecord, SlurmJob], bool]:
        """Journal what is due; return which of the jobs that Slurm shows as FAILED are not over for us."""
        self._start_again(now)
        self._bring_back()
        self._let_go(now)
        self._let_go_what_slurm_holds(now)
        self._renew_limits(now)
        return self._is_unsettled

    def _is_unsettled(self, record: JobRecord, job: SlurmJob) -> bool:
        under_way = record.open_reallocation
        if job.job_id in self._to_start_again:
            return True
        if under_way is not None and failed_starts.was_ended_by_slurm(record, job):
            return True  # the move ends at a tick, and the next round starts the job again
        if job.state is JobState.FAILED and failed_starts.is_start_again(under_way):
            return True
        return failed_moves.is_unsettled(record, job)

    def _jobs(self) -> Iterator[tuple[JobRecord, SlurmJob]]:
        by_id = {job.job_id: job for job in self.snapshot.jobs}
        for record in self.records:
            job = by_id.get(record.slurm_job_id)
            if job is not None:
                yield record, job

    def _mover(self, record: JobRecord) -> Mover:
        timeout_s = self.config.checkpoint_timeout_s
        return Mover(
            record.user_name, unanswered_requests.is_doubtful(record, self.clock(), timeout_s=timeout_s)
        )

    def _plan_stopped(
        self,
        record: JobRecord,
        job: SlurmJob,
        source: Allocation,
        target: Allocation,
        cause: ReallocationCause,
        reason: str,
    ) -> None:
        """Journal a reallocation of a job that runs, or ran until it failed."""
        self.guard()
        self.store.plan_reallocation(
            job.job_id,
            source=source,
            target=target,
            moves_running=True,
            from_restart_count=job.restart_count,
            round_id=None,
            at=self.clock(),
            cause=cause,
            reason=reason,
        )
        self._slots.take(self._mover(record))

    def _place_of(self, record: JobRecord, job: SlurmJob) -> Allocation:
        return failed_starts.place_of(record, job, self.store.allocation_history(job.job_id), self.snapshot)

    # -------------------------------------------------------------------------------------------- each need

    def _start_again(self, now: datetime) -> None:
        """Start each job again whose start Slurm ended; as many at a time as may be in flight."""
        for record, job in self._jobs():
            if record.open_reallocation is not None or not failed_starts.was_ended_by_slurm(record, job):
                continue
            if not failed_starts.may_start_again(self.store.reallocations(job.job_id), now):
                continue
            if place := self._place_of(record, job):
                self._to_start_again.add(job.job_id)
                if self._slots.has_room_for(self._mover(record)):
                    _log.warning("job %s: Slurm ended its start: it is started again", job.job_id)
                    reason = failed_starts.reason_to_start(job)
                    self._plan_stopped(record, job, place, place, ReallocationCause.FAILED_START, reason)

    def _bring_back(self) -> None:
        """Bring each job back that failed where a reallocation had brought it."""
        for record, job in failed_moves.fallen(self.snapshot, self.records):
            fall = record.last_reallocation
            if fall is None or job.job_id in self._to_start_again:
                continue
            back = failed_moves.shape_to_return_to(fall, self.store.allocation_history(job.job_id))
            reason = failed_moves.reason_of_return(fall, job)
            self._plan_stopped(record, job, fall.target, back, ReallocationCause.AFTER_FAILURE, reason)

    def _let_go(self, now: datetime) -> None:
        """Release each job that a daemon before this one held when it might no more."""
        for record, job in late_commands.suspects(self.snapshot, self.records, now):
            move = late_commands.taken_over(job, self.store.reallocations(job.job_id), now)
            last = record.last_reallocation
            if move is None or last is None:
                continue
            _log.warning("job %s: held by a late command of the daemon before: it is let go", job.job_id)
            self.guard()
            late_commands.plan_release(
                self.store,
                job,
                allocation=last.target or last.source,
                was_requeued=job.restart_count > move.from_restart_count + move.moves_running,
                at=self.clock(),
            )

    def _let_go_what_slurm_holds(self, now: datetime) -> None:
        """Release jobs that Slurm itself holds, each after a pause that grows every time."""
        for record, job in failed_starts.given_up(self.snapshot, self.records):
            if not self._slots.has_room_for(self._mover(record)):
                continue
            if not failed_starts.may_be_let_go(self.store.reallocations(job.job_id), now):
                continue
            if place := self._place_of(record, job):
                _log.warning("job %s: Slurm holds it (%s): it is let go", job.job_id, job.reason)
                self.guard()
                late_commands.plan_release(
                    self.store,
                    job,
                    allocation=place,
                    was_requeued=False,
                    at=self.clock(),
                    cause=ReallocationCause.HELD_BY_SLURM,
                    reason=failed_starts.reason_to_let_go(job),
                )
                self._slots.take(self._mover(record))

    def _renew_limits(self, now: datetime) -> None:
        """Stop each job near its limit whose owner wants another slice of time for it."""
        for record, job in self._jobs():
            if not self._may_renew(record):
                continue
            if not time_limits.is_ending(ManagedJob(slurm=job, record=record), now, self.config):
                continue
            history = self.store.allocation_history(job.job_id)
            if time_limits.next_slice_s(job, record, history, now) is None:
                continue
            place, cause = job.allocation, ReallocationCause.TIME_LIMIT
            self._plan_stopped(record, job, place, place, cause, time_limits.RENEWAL)

    def _may_renew(self, record: JobRecord) -> bool:
        """Whether a job may be asked now. One that is asked too late ends, so it waits for no other's move.

        Nor for those of its own user once a job of theirs has answered: the slices of an array end together.
        """
        mover = self._mover(record)
        if mover.is_doubtful:
            return self._slots.has_room_for(mover)
        return mover.user in self._users_that_answer or self._slots.has_own_room_for(mover.user)
