"""Moves that do not depend on a decision: a start, a return, a release, or another slice of time."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pollux_slurm.config import DaemonConfig
from pollux_slurm.daemon.decide import in_place, unanswered_requests
from pollux_slurm.daemon.decide.move_slots import Mover, Slots
from pollux_slurm.daemon.enact import time_limits
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob
from pollux_slurm.daemon.recovery import failed_moves, failed_starts, late_commands
from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    JobState,
    ReallocationCause,
    ReallocationWay,
    SlurmJob,
)
from pollux_slurm.now.known_jobs import is_recorded_job
from pollux_slurm.store.contract.interface import JobRecord, Store
from pollux_slurm.text import some_of

_log = logging.getLogger(__name__)

_MAX_NAMED = 5


@dataclass(slots=True, kw_only=True)
class Maintenance:
    """Plans these moves in one round. `guard` raises when this daemon may not act."""

    store: Store
    guard: Callable[[], None]
    config: DaemonConfig
    clock: Callable[[], datetime]
    snapshot: ClusterSnapshot
    records: Sequence[JobRecord]
    _slots: Slots = field(init=False)
    _answering_users: frozenset[str] = field(init=False)
    _to_start_again: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._slots = Slots(
            self.config.max_in_flight,
            users={record.user_name for record in self.records},
            taken_by=[self._mover(record) for record in self.records if record.open_reallocation is not None],
        )
        self._answering_users = frozenset(
            record.user_name for record in self.records if unanswered_requests.has_answered(record)
        )

    def journal(self, now: datetime) -> Callable[[JobRecord, SlurmJob], bool]:
        """Journal the moves that are due; return a function for whether a FAILED job is not over."""
        self._start_again(now)
        self._return_after_failure()
        self._release_late_holds(now)
        self._release_jobs_held_by_slurm(now)
        self._renew_limits(now)
        self._move_anchors(now)
        self._cancel_stray_wings(now)
        return self._is_not_over

    def _is_not_over(self, record: JobRecord, job: SlurmJob) -> bool:
        open_move = record.open_reallocation
        if job.job_id in self._to_start_again:
            return True
        if open_move is not None and failed_starts.was_ended_by_slurm(record, job):
            return True  # a tick ends the move, and the next round starts the job again
        if job.state is JobState.FAILED and failed_starts.is_start_again(open_move):
            return True
        return failed_moves.is_not_over(record, job)

    def _jobs(self) -> Iterator[tuple[JobRecord, SlurmJob]]:
        by_id = {job.job_id: job for job in self.snapshot.jobs}
        for record in self.records:
            job = by_id.get(record.slurm_job_id)
            if job is not None:
                yield record, job

    def _mover(self, record: JobRecord) -> Mover:
        timeout_s = self.config.checkpoint_timeout_s
        return Mover(
            record.user_name, unanswered_requests.may_not_answer(record, self.clock(), timeout_s=timeout_s)
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
        """Journal a reallocation of a job that runs or has failed."""
        self.guard()
        self.store.journal.plan(
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

    def _start_allocation(self, record: JobRecord, job: SlurmJob) -> Allocation:
        return failed_starts.start_allocation(
            record, job, self.store.history.allocations(job.job_id), self.snapshot
        )

    # ------------------------------------------------------------------------------------------- each kind

    def _start_again(self, now: datetime) -> None:
        """Start jobs again after a failed start, within the limits on concurrent moves."""
        for record, job in self._jobs():
            if record.open_reallocation is not None or not failed_starts.was_ended_by_slurm(record, job):
                continue
            if not failed_starts.may_start_again(self.store.journal.reallocations(job.job_id), now):
                continue
            if target := self._start_allocation(record, job):
                self._to_start_again.add(job.job_id)
                if self._slots.has_room_for(self._mover(record)):
                    _log.warning("job %s: Slurm ended its start: it is started again", job.job_id)
                    reason = failed_starts.restart_reason(job)
                    self._plan_stopped(record, job, target, target, ReallocationCause.FAILED_START, reason)

    def _return_after_failure(self) -> None:
        """Return each job that failed in the target of a reallocation."""
        for record, job in failed_moves.jobs_to_return(self.snapshot, self.records):
            failed_move = record.last_reallocation
            if failed_move is None or job.job_id in self._to_start_again:
                continue
            target = failed_moves.shape_to_return_to(failed_move, self.store.history.allocations(job.job_id))
            reason = failed_moves.return_reason(failed_move, job)
            self._plan_stopped(
                record, job, failed_move.target, target, ReallocationCause.AFTER_FAILURE, reason
            )

    def _release_late_holds(self, now: datetime) -> None:
        """Release each job that a late command of an earlier daemon holds."""
        for record, job in late_commands.jobs_maybe_held_late(self.snapshot, self.records, now):
            move = late_commands.move_explaining_hold(job, self.store.journal.reallocations(job.job_id), now)
            last = record.last_reallocation
            if move is None or last is None:
                continue
            _log.warning("job %s: held by a late command of an earlier daemon: it is released", job.job_id)
            self.guard()
            late_commands.plan_release(
                self.store,
                job,
                allocation=last.target or last.source,
                was_requeued=job.restart_count > move.from_restart_count + move.moves_running,
                at=self.clock(),
            )

    def _release_jobs_held_by_slurm(self, now: datetime) -> None:
        """Release jobs that Slurm itself holds, each after a wait that grows every time."""
        for record, job in failed_starts.jobs_held_by_slurm(self.snapshot, self.records):
            if not self._slots.has_room_for(self._mover(record)):
                continue
            if not failed_starts.may_be_released(self.store.journal.reallocations(job.job_id), now):
                continue
            if target := self._start_allocation(record, job):
                _log.warning("job %s: Slurm holds it (%s): it is released", job.job_id, job.reason)
                self.guard()
                late_commands.plan_release(
                    self.store,
                    job,
                    allocation=target,
                    was_requeued=False,
                    at=self.clock(),
                    cause=ReallocationCause.HELD_BY_SLURM,
                    reason=failed_starts.release_reason(job),
                )
                self._slots.take(self._mover(record))

    def _renew_limits(self, now: datetime) -> None:
        """Renew each job near its time limit that gets another slice of time."""
        for record, job in self._jobs():
            if not self._may_renew(record):
                continue
            if not time_limits.is_ending(ManagedJob(slurm=job, record=record), now, self.config):
                continue
            history = self.store.history.allocations(job.job_id)
            if time_limits.next_slice_s(job, record, history, now) is None:
                continue
            target, cause = job.allocation, ReallocationCause.TIME_LIMIT
            self._plan_stopped(record, job, target, target, cause, time_limits.RENEWAL)

    def _is_not_asked(self, record: JobRecord, now: datetime) -> bool:
        """Whether the job is left alone for a while, after it has failed or not answered."""
        timeout_s = self.config.checkpoint_timeout_s
        unanswered = unanswered_requests.not_asked_because(record, now, timeout_s=timeout_s)
        return (unanswered or failed_moves.not_moved_because(record)) is not None

    def _move_anchors(self, now: datetime) -> None:
        """Requeue each job whose anchor must leave its node, and the anchor with it.

        Where the job has GPUs of a drained node, too, the decision moves those first. If that is a requeue,
        the anchor goes with it.
        """
        draining = {node.name for node in self.snapshot.nodes if node.draining}
        for record, job in self._jobs():
            if job.anchor_leaves_because is None or job.state is not JobState.RUNNING:
                continue
            if not is_recorded_job(job, record) or not draining.isdisjoint(job.allocation.nodes):
                continue
            if job.unschedulable_reason is not None or self._is_not_asked(record, now):
                continue
            if record.open_reallocation is None and self._slots.has_room_for(self._mover(record)):
                _log.info("job %s: %s", job.job_id, job.anchor_leaves_because)
                target, cause = job.allocation, ReallocationCause.DECISION
                self._plan_stopped(record, job, target, target, cause, job.anchor_leaves_because)

    def _cancel_stray_wings(self, now: datetime) -> None:
        """Journal the end of wings in which none of a job's processes is; a tick cancels them."""
        for record, job in self._jobs():
            if record.open_reallocation is not None or not is_recorded_job(job, record):
                continue
            strays = in_place.stray_wings(job, record, now)
            if not strays or in_place.had_stray_wings_lately(record, now):
                continue
            left = Counter(job.allocation.as_dict())
            for wing in strays:
                left -= Counter(wing.allocation.as_dict())
            numbers = some_of([wing.job_id for wing in strays], _MAX_NAMED)
            _log.warning(
                "job %s: none of its processes is in its wings %s: they are cancelled", job.job_id, numbers
            )
            self.guard()
            self.store.journal.plan(
                job.job_id,
                source=job.allocation,
                target=Allocation.of(left),
                moves_running=True,
                from_restart_count=job.restart_count,
                round_id=None,
                at=self.clock(),
                cause=ReallocationCause.STRAY_WINGS,
                reason=f"none of its processes is in the wings {numbers}: they are cancelled",
                way=ReallocationWay.IN_PLACE,
            )

    def _may_renew(self, record: JobRecord) -> bool:
        """Whether a renewal may start now.

        A late renewal ends the job, so it does not wait for other users' moves. Nor for its own user's, once
        one of their jobs has answered: the slices of an array end together.
        """
        mover = self._mover(record)
        if mover.may_not_answer:
            return self._slots.has_room_for(mover)
        return mover.user in self._answering_users or self._slots.user_has_room(mover.user)
