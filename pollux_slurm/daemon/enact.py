"""Enact reallocations: a journaled state machine, one step per tick and job, safe to kill at any instant.

    planned → checkpoint_requested → checkpointed → requeued → reshaped → released → running → confirmed

A job that still waits in the queue skips the checkpoint and the requeue: planned → reshaped → ...

Two rules make a crash harmless (invariant 5):

- A step is journaled *before* its command, so finding a reallocation at a step means: its command may or
  may not have been given. Every command is therefore repeated when Slurm does not yet show its effect, and
  each is conditional on the state just read (`pollux_slurm.slurm.client`).
- Moving the journal is a compare-and-set on the step that was read, so a second daemon, a late report of a
  checkpoint and this loop cannot overwrite each other.

Every wait has a way back. Up to `checkpointed` nothing has happened to the job: it is rolled back, the agent
sees that nothing is asked any more, and training goes on. From `requeued` on, the job is brought to run again
at whatever price: in its target, else in its old shape, else with its minimum on any one node.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pollux_slurm.config import DaemonConfig
from pollux_slurm.daemon.capacity import GpuBook
from pollux_slurm.daemon.observe import is_recorded_job
from pollux_slurm.errors import (
    JobStateError,
    LeaseLostError,
    SlurmCommandError,
    SlurmUnavailable,
    StoreError,
)
from pollux_slurm.model import ClusterSnapshot, JobShape, JobState, ReallocationStep, SlurmJob
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract import JobRecord, Reallocation, RunPhase, Store

_log = logging.getLogger(__name__)

Step = ReallocationStep
# Reasons of a pending job that no waiting cures, as Slurm 22.05 words them.
_HOPELESS_REASONS = frozenset({"BadConstraints", "PartitionNodeLimit", "JobArrayTaskLimit"})
# After a release, Slurm needs a moment before the nodes show what is really free.
_SETTLING_S = 5.0
_NOT_OURS = "its Comment no longer carries the terms that were registered"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One open reallocation with what is known of its job in this tick."""

    reallocation: Reallocation
    job: SlurmJob | None
    record: JobRecord | None
    age_s: float

    @property
    def is_ours(self) -> bool:
        """Whether Slurm's job of this number is the registered one."""
        return self.job is not None and self.record is not None and is_recorded_job(self.job, self.record)

    @property
    def id(self) -> str:
        return self.reallocation.slurm_job_id

    def at(self, step: Step) -> _Case:
        """Return the case with its reallocation moved on to `step`, as the journal now has it."""
        return dataclasses.replace(self, reallocation=dataclasses.replace(self.reallocation, step=step))


class Enactor:
    """Drives open reallocations through their steps. `guard` raises when this daemon may not act."""

    def __init__(
        self,
        *,
        slurm: SlurmClient,
        store: Store,
        config: DaemonConfig,
        clock: Callable[[], datetime],
        guard: Callable[[], None],
    ) -> None:
        self._slurm = slurm
        self._store = store
        self._config = config
        self._clock = clock
        self._guard = guard
        self._released_here: set[int] = set()
        self._missing_since: dict[int, datetime] = {}
        self._steps: Mapping[Step, Callable[[_Case, GpuBook], None]] = {
            Step.PLANNED: self._planned,
            Step.CHECKPOINT_REQUESTED: self._checkpoint_requested,
            Step.CHECKPOINTED: self._checkpointed,
            Step.REQUEUED: self._requeued,
            Step.RESHAPED: self._reshaped,
            Step.RELEASED: self._released,
            Step.RUNNING: self._running,
        }

    def tick(self) -> int:
        """Advance every open reallocation by at most a few steps; return how many are still open.

        Reads Slurm once, and not at all while nothing is open.
        """
        if not self._store.open_reallocations():
            return 0
        snapshot = self._slurm.snapshot()
        # The journal is read after Slurm, so that a step is never judged by an older Slurm than its own.
        cases = self._cases(snapshot)
        book = GpuBook.of(snapshot, [case.reallocation for case in cases])
        for case in cases:
            try:
                self._steps[case.reallocation.step](case, book)
            except JobStateError as error:
                # The job moved between the read and the command. The next tick sees where it is.
                _log.info("job %s: %s", case.id, error)
            except SlurmCommandError as error:
                _log.warning("job %s: %s", case.id, error)
            except (SlurmUnavailable, StoreError, LeaseLostError):
                raise
            except Exception:
                # One job's trouble must not keep the others held.
                _log.exception("job %s: reallocation %d failed", case.id, case.reallocation.id)
        return len(self._store.open_reallocations())

    def roll_back_what_has_not_begun(self, reason: str) -> None:
        """End every reallocation whose job has not been touched yet: before a stop of the daemon."""
        for reallocation in self._store.open_reallocations():
            if reallocation.step in (Step.PLANNED, Step.CHECKPOINT_REQUESTED, Step.CHECKPOINTED):
                self._move(reallocation, Step.ROLLED_BACK, reason)

    def held_jobs(self) -> tuple[str, ...]:
        """Return the jobs that may be held by us: the daemon must not stop now."""
        return tuple(
            reallocation.slurm_job_id
            for reallocation in self._store.open_reallocations()
            if reallocation.step in (Step.REQUEUED, Step.RESHAPED)
            or (reallocation.step is Step.RELEASED and reallocation.id not in self._released_here)
        )

    # ---------------------------------------------------------------------------- before the job is touched

    def _planned(self, case: _Case, book: GpuBook) -> None:
        reallocation = case.reallocation
        if not reallocation.moves_running:
            self._start_reshaping_pending(case, book)
            return
        if self._roll_back_if_moved_on(case):
            return
        if book.lost_to_neighbours(reallocation):
            self._move(
                reallocation, Step.ROLLED_BACK, "the GPUs were taken by other jobs or the node drained"
            )
        elif book.is_free_for(reallocation) or book.may_break_cycle(reallocation):
            if self._move(reallocation, Step.CHECKPOINT_REQUESTED):
                book.reserve(reallocation)
        elif case.age_s > self._config.start_timeout_s + self._config.checkpoint_timeout_s:
            self._move(reallocation, Step.ROLLED_BACK, "the GPUs did not become free in time")

    def _start_reshaping_pending(self, case: _Case, book: GpuBook) -> None:
        job = case.job
        if job is None or job.state is not JobState.PENDING:
            self._move(case.reallocation, Step.ROLLED_BACK, "the job did not wait in the queue any more")
        elif not case.is_ours:
            self._move(case.reallocation, Step.ROLLED_BACK, _NOT_OURS)
        elif job.held:
            self._move(case.reallocation, Step.ROLLED_BACK, "the job is held by somebody else")
        elif self._move(case.reallocation, Step.RESHAPED):
            self._reshaped(case.at(Step.RESHAPED), book)

    def _checkpoint_requested(self, case: _Case, book: GpuBook) -> None:
        if self._roll_back_if_moved_on(case):
            return
        if case.age_s <= self._config.checkpoint_timeout_s:
            return
        waited = f"no checkpoint was confirmed in {self._config.checkpoint_timeout_s:g} s"
        if case.record is not None and case.record.terms.allow_unconfirmed:
            self._move(case.reallocation, Step.CHECKPOINTED, f"{waited}; the owner allows to go on")
        else:
            self._move(case.reallocation, Step.ROLLED_BACK, waited)

    def _checkpointed(self, case: _Case, book: GpuBook) -> None:
        reallocation = case.reallocation
        if self._roll_back_if_moved_on(case):
            return
        if book.lost_to_neighbours(reallocation):
            self._move(reallocation, Step.ROLLED_BACK, "the GPUs were taken while the job saved itself")
        elif self._trains_again(case):
            self._move(reallocation, Step.ROLLED_BACK, "the job went on training after its checkpoint")
        elif self._move(reallocation, Step.REQUEUED):
            self._command(lambda: self._slurm.requeue_hold(case.id))

    def _trains_again(self, case: _Case) -> bool:
        """Whether the agent gave up waiting, as it does when no daemon has been alive for a while."""
        run, confirmed_at = (
            case.record.run if case.record else None,
            case.reallocation.entered_at(Step.CHECKPOINTED),
        )
        return (
            run is not None
            and confirmed_at is not None
            and run.phase is RunPhase.TRAINING
            and run.last_report_at > confirmed_at
            and case.reallocation.reason is None
        )

    def _roll_back_if_moved_on(self, case: _Case) -> bool:
        """Roll back when the job is no longer the running job that was planned for."""
        job = case.job
        if job is not None and not case.is_ours:
            reason = _NOT_OURS
        elif job is not None and job.state is JobState.RUNNING:
            if job.restart_count == case.reallocation.from_restart_count:
                return False
            reason = "the job was requeued by another hand"
        else:
            reason = f"the job is {job.state.value if job else 'gone'}"
        self._move(case.reallocation, Step.ROLLED_BACK, reason)
        return True

    # ----------------------------------------------------------------------------------- the job is stopped

    def _requeued(self, case: _Case, book: GpuBook) -> None:
        reallocation, job = case.reallocation, case.job
        if self._fail_if_over(case):
            return
        assert job is not None
        was_requeued = job.restart_count > reallocation.from_restart_count
        if job.state is JobState.PENDING and was_requeued:
            if self._move(reallocation, Step.RESHAPED):
                self._reshaped(case.at(Step.RESHAPED), book)
        elif job.state is JobState.RUNNING and was_requeued:
            self._move(reallocation, Step.ROLLED_BACK, "the job was started again by another hand")
        elif job.state is JobState.RUNNING:
            if case.age_s > self._config.requeue_timeout_s:
                self._move(reallocation, Step.ROLLED_BACK, "Slurm did not requeue the job in time")
            else:
                self._command(lambda: self._slurm.requeue_hold(case.id))
        # COMPLETING: Slurm is killing it. There is nothing to do but wait for Slurm's own time-outs.

    def _reshaped(self, case: _Case, book: GpuBook) -> None:
        job = case.job
        if self._fail_if_over(case):
            return
        assert job is not None
        if job.state is JobState.RUNNING:
            # For a pending job: Slurm started it before it was held. For a requeued one: another hand did.
            self._move(case.reallocation, Step.ROLLED_BACK, "the job started before it was reshaped")
        elif job.state is JobState.PENDING:
            if not job.held:
                # To hold it first makes the rest free of races: Slurm refuses to hold a job that has started.
                # A requeued job found like this was released by hand within the second.
                self._command(lambda: self._slurm.hold(case.id))
            self._reshape_or_way_back(case)

    def _reshape_or_way_back(self, case: _Case) -> None:
        """Reshape the held job to its target, else to what it had, else to its minimum anywhere; release."""
        reallocation = case.reallocation
        refused: list[str] = []
        for shape in self._shapes(case):
            try:
                self._command(lambda shape=shape: self._slurm.reshape(case.id, shape))  # type: ignore[misc]
                break
            except JobStateError:
                raise
            except SlurmCommandError as error:
                refused.append(str(error))
                _log.warning("job %s: cannot get the shape %s: %s", case.id, shape, error)
        reason = f"Slurm refused the shape: {refused[0]}" if refused else None
        if self._move(reallocation, Step.RELEASED, reason):
            self._release(case)

    def _shapes(self, case: _Case) -> Iterable[JobShape]:
        cpus_per_gpu = case.record.cpus_per_gpu if case.record else 1
        yield JobShape.of(case.reallocation.target, cpus_per_gpu=cpus_per_gpu)
        if case.reallocation.source:
            yield JobShape.of(case.reallocation.source, cpus_per_gpu=cpus_per_gpu)
        yield self._smallest_shape(case)

    @staticmethod
    def _smallest_shape(case: _Case) -> JobShape:
        record = case.record
        return JobShape(
            num_gpus=record.terms.min_gpus if record else 1,
            cpus_per_gpu=record.cpus_per_gpu if record else 1,
        )

    # ------------------------------------------------------------------------------------ and started again

    def _released(self, case: _Case, book: GpuBook) -> None:
        reallocation, job = case.reallocation, case.job
        if self._fail_if_over(case):
            return
        assert job is not None
        if job.state is JobState.RUNNING:
            self._move(reallocation, Step.RUNNING, reallocation.reason)
        elif job.state is not JobState.PENDING:
            return
        elif job.held and reallocation.id in self._released_here:
            self._move(reallocation, Step.FAILED, "the job was held by another hand")
        elif job.held:
            self._release(case)
        elif (
            case.age_s > self._config.start_timeout_s
            or job.reason in _HOPELESS_REASONS
            or (case.age_s > _SETTLING_S and book.lost_to_neighbours(reallocation))
        ):
            self._give_up_place(case, job)

    def _release(self, case: _Case) -> None:
        self._command(lambda: self._slurm.release(case.id))
        # Found held after this, it was held by a person, whose wish counts more than ours.
        self._released_here.add(case.reallocation.id)

    def _give_up_place(self, case: _Case, job: SlurmJob) -> None:
        """Let the job start with its minimum on any node: the place it was promised is gone."""
        # Held from here on, it is held by us: whatever fails below, the next tick releases it.
        self._released_here.discard(case.reallocation.id)
        self._command(lambda: self._slurm.hold(case.id))
        try:
            self._command(lambda: self._slurm.reshape(case.id, self._smallest_shape(case)))
        except JobStateError:
            raise
        except SlurmCommandError as error:
            _log.warning("job %s: keeps its shape: %s", case.id, error)
        self._release(case)
        reason = case.reallocation.reason or f"did not start in its new shape ({job.reason})"
        self._move(case.reallocation, Step.FAILED, reason)

    def _running(self, case: _Case, book: GpuBook) -> None:
        """Compare what the job got with the plan, and wait for its first step there."""
        reallocation, job = case.reallocation, case.job
        is_running = job is not None and job.state is JobState.RUNNING
        if job is not None and is_running and job.allocation != reallocation.target:
            reason = reallocation.reason or f"got {job.allocation} instead of {reallocation.target}"
            self._move(reallocation, Step.FAILED, reason)
        elif self._has_stepped(case):
            self._move(reallocation, Step.CONFIRMED)
        elif self._fail_if_over(case):
            return
        elif not is_running:
            state = job.state.value if job else "gone"
            self._move(reallocation, Step.FAILED, f"the job is {state} before its first step")
        elif not reallocation.moves_running:
            # It had never run: there is no step to compare with and nothing that it could have lost.
            self._move(reallocation, Step.CONFIRMED)
        elif case.age_s > self._config.first_report_timeout_s:
            self._move(reallocation, Step.FAILED, "no step was reported in the new shape in time")

    @staticmethod
    def _has_stepped(case: _Case) -> bool:
        run = case.record.run if case.record else None
        return (
            run is not None and run.restart_count > case.reallocation.from_restart_count and run.num_steps > 0
        )

    def _fail_if_over(self, case: _Case) -> bool:
        """End the reallocation of a job that is over, unknown to Slurm for a while, or no longer ours."""
        job, number = case.job, case.reallocation.id
        if job is None:
            since = self._missing_since.setdefault(number, self._clock())
            if (self._clock() - since).total_seconds() > _SETTLING_S:
                self._move(case.reallocation, Step.FAILED, "the job is gone")
            return True
        self._missing_since.pop(number, None)
        if job.state.is_over:
            self._move(case.reallocation, Step.FAILED, f"the job is {job.state.value}")
        elif not case.is_ours:
            if job.held and case.record is not None and job.user_name == case.record.user_name:
                # Its owner took the terms out of its Comment while we held it: let it go as it is.
                self._release(case)
            self._move(case.reallocation, Step.FAILED, _NOT_OURS)
        else:
            return False
        return True

    # ---------------------------------------------------------------------------------------------- helpers

    def _cases(self, snapshot: ClusterSnapshot) -> Sequence[_Case]:
        jobs = {job.job_id: job for job in snapshot.jobs}
        records = {record.slurm_job_id: record for record in self._store.active_jobs()}
        now = self._clock()
        return [
            _Case(
                reallocation=reallocation,
                job=jobs.get(reallocation.slurm_job_id),
                record=records.get(reallocation.slurm_job_id),
                age_s=(now - (reallocation.entered_at(reallocation.step) or now)).total_seconds(),
            )
            for reallocation in self._store.open_reallocations()
        ]

    def _move(self, reallocation: Reallocation, step: Step, reason: str | None = None) -> bool:
        self._guard()
        moved = self._store.advance_reallocation(
            reallocation.id, step, expected=reallocation.step, at=self._clock(), reason=reason
        )
        if moved:
            level = logging.WARNING if step in (Step.FAILED, Step.ROLLED_BACK) else logging.INFO
            _log.log(
                level,
                "job %s: reallocation %d %s → %s: %s%s",
                reallocation.slurm_job_id,
                reallocation.id,
                reallocation.source,
                reallocation.target,
                step.value,
                f" ({reason})" if reason else "",
            )
        return moved

    def _command(self, command: Callable[[], None]) -> None:
        """Give one command to Slurm, having made sure once more that this daemon may act."""
        self._guard()
        command()
