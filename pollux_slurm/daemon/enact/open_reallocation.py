"""What the steps of a reallocation share: one open reallocation as seen in a tick, and the two ways to act.

To move the journal is a compare-and-set, and each command is conditional on the state just read; `guard` is
asked before either whether this daemon may still act (invariant 10).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pollux_slurm.config import DaemonConfig
from pollux_slurm.daemon.enact import time_limits
from pollux_slurm.daemon.observe.cluster_picture import is_recorded_job
from pollux_slurm.daemon.recovery.late_commands import LateCommand, LateCommands
from pollux_slurm.daemon.service.metrics import Telemetry
from pollux_slurm.errors import JobStateError, LeaseLostError, SlurmError, StoreError
from pollux_slurm.model import Allocation, ClusterSnapshot, JobState, ReallocationStep, SlurmJob
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import JobObservation, JobRecord, Reallocation, Store

_log = logging.getLogger(__name__)

Step = ReallocationStep
NOT_OURS = "its Comment no longer carries the terms that were registered"
# After a release, Slurm needs a moment before the nodes show what is really free.
SETTLING_S = 5.0
# slurmctld's clock, in whole seconds, tells to a second when a command took effect that is no older.
_PROMPT = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
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

    def at(self, step: Step) -> Case:
        """Return the case with its reallocation moved on to `step`, as the journal now has it."""
        return dataclasses.replace(self, reallocation=dataclasses.replace(self.reallocation, step=step))


class Desk:
    """Where the steps act from: the journal and Slurm, with this daemon's right to touch them checked.

    `slurm` asks `guard` itself, right before each command.
    """

    def __init__(
        self,
        *,
        slurm: SlurmClient,
        store: Store,
        config: DaemonConfig,
        clock: Callable[[], datetime],
        guard: Callable[[], None],
        telemetry: Telemetry | None = None,
        predecessor_may_live: Callable[[], bool] = lambda: False,
    ) -> None:
        self._telemetry = telemetry
        self.predecessor_may_live = predecessor_may_live
        self.slurm = slurm.guarded(guard)
        self.store = store
        self.config = config
        self.clock = clock
        self.guard = guard
        self.late = LateCommands(slurm=slurm, store=store, clock=clock)
        # When this process let the job of each go, where it did.
        self._released_here: dict[int, datetime] = {}
        # Where this process has journaled each open reallocation to be.
        self._stands_here: dict[int, Step] = {}
        # Those of which a command was repeated that the daemon before may be about to give.
        self._in_doubt: set[int] = set()
        self._missing_since: dict[int, datetime] = {}

    def cases(self, snapshot: ClusterSnapshot) -> Sequence[Case]:
        """Return every open reallocation with its job. The journal is read after Slurm."""
        jobs = {job.job_id: job for job in snapshot.jobs}
        records = {record.slurm_job_id: record for record in self.store.active_jobs()}
        now = self.clock()
        return [
            Case(
                reallocation=reallocation,
                job=jobs.get(reallocation.slurm_job_id),
                record=records.get(reallocation.slurm_job_id),
                age_s=(now - (reallocation.entered_at(reallocation.step) or now)).total_seconds(),
            )
            for reallocation in self.store.open_reallocations()
        ]

    def move(
        self,
        reallocation: Reallocation,
        step: Step,
        reason: str | None = None,
        *,
        time_left_s: float | None = None,
        checkpoint_waived: bool = False,
        continued_training: bool = False,
        job_failed: bool = False,
    ) -> bool:
        """Journal a step; False when somebody else has moved this reallocation meanwhile.

        A reason is added to what the journal says already: what it was planned for comes first.
        """
        self.guard()
        if reason is not None:
            reason = _added(reallocation.reason, reason)
        moved = self.store.advance_reallocation(
            reallocation.id,
            step,
            expected=reallocation.step,
            at=self.clock(),
            reason=reason,
            time_left_s=time_left_s,
            checkpoint_waived=checkpoint_waived,
            continued_training=continued_training,
            job_failed=job_failed,
            taken_over=reallocation.id in self._in_doubt,
        )
        if moved:
            self._stands_here[reallocation.id] = step
            if step.is_end:
                del self._stands_here[reallocation.id]
                self._released_here.pop(reallocation.id, None)
                self._in_doubt.discard(reallocation.id)
            if step.is_end and self._telemetry is not None:
                self._telemetry.end_move(reallocation, step, self.clock())
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

    def retarget(self, case: Case, target: Allocation, reason: str) -> Case | None:
        """Journal another target for a reallocation under way; None when somebody else has moved it."""
        self.guard()
        reallocation = case.reallocation
        said = _added(reallocation.reason, reason)
        if not self.store.retarget_reallocation(
            reallocation.id, target, expected=reallocation.step, reason=said
        ):
            return None
        _log.info("job %s: reallocation %d goes to %s %s", case.id, reallocation.id, target, reason)
        changed = dataclasses.replace(reallocation, target=target, retargeted=True, reason=said)
        return dataclasses.replace(case, reallocation=changed)

    def waited_s(self, case: Case) -> float:
        """Return how long the job could have started in its target, or, after a crash, since its release."""
        since = self._released_here.get(case.reallocation.id)
        return case.age_s if since is None else min(case.age_s, (self.clock() - since).total_seconds())

    # -------------------------------------------------------------------------------------- who holds a job

    def stop(self, case: Case) -> Case | None:
        """Journal the requeue with what the job has left of its time limit; None if somebody else did.

        Slurm counts anew from each start: what earlier runs used of the limit is taken off it by us. A
        renewal gives it the slice that its owner lets it have.
        """
        left_s = time_limits.time_left_s(case.job, self.clock()) if case.job is not None else None
        if case.job is not None and case.record is not None and time_limits.is_renewal(case.reallocation):
            history = self.store.allocation_history(case.id)
            left_s = time_limits.next_slice_s(case.job, case.record, history, self.clock()) or left_s
        if not self.move(case.reallocation, Step.REQUEUED, time_left_s=left_s):
            return None
        stopped = case.at(Step.REQUEUED)
        return dataclasses.replace(
            stopped, reallocation=dataclasses.replace(stopped.reallocation, time_left_s=left_s)
        )

    def requeue(self, case: Case) -> None:
        """Put the running job back into the queue, held by us."""
        number = case.reallocation.from_restart_count
        asked_at = self.clock()
        self._unless_late(case, lambda: self.slurm.requeue_hold(case.id, restart_count=number), requeued=True)
        self._note_end(case, asked_at)

    def _note_end(self, case: Case, asked_at: datetime) -> None:
        """Note that a run ended just now, by slurmctld's clock: Slurm shows the end of such a run to nobody.

        This host's clock may be wrong. Where the end cannot be told to a second, the next look estimates it.
        """
        try:
            ended_at = self.slurm.controller_time()
        except SlurmError as error:
            _log.info("job %s: when its run ended is estimated: %s", case.id, error)
            return
        if case.job is None or self.clock() - asked_at > _PROMPT:
            return
        seen = JobObservation(
            slurm_job_id=case.id,
            state=JobState.COMPLETING,
            allocation=Allocation(),
            started_at=case.job.started_at,
            ended_at=ended_at,
            restart_count=case.job.restart_count,
        )
        self.store.observe_jobs([seen], at=self.clock())

    def bring_back(self, case: Case) -> None:
        """Put the job that failed back into the queue, held by us."""
        number = case.reallocation.from_restart_count
        self._unless_late(
            case, lambda: self.slurm.requeue_failed(case.id, restart_count=number), requeued=True
        )

    def hold(self, case: Case) -> None:
        """Hold a job that waits in the queue."""
        self._unless_late(case, lambda: self.slurm.hold(case.id), requeued=False)

    def _unless_late(self, case: Case, command: Callable[[], None], *, requeued: bool) -> None:
        """Give a command that holds the job; note it when the lease was lost on the way to Slurm."""
        assert case.job is not None
        number = case.reallocation.id
        if self._stands_here.get(number) is not case.reallocation.step and self.predecessor_may_live():
            self._in_doubt.add(number)
        try:
            command()
        except (JobStateError, LeaseLostError):
            raise  # it was not given
        except SlurmError:
            self._note_if_late(case, case.job, requeued=requeued)  # not answered, it may have happened
            raise
        self._note_if_late(case, case.job, requeued=requeued)

    def _note_if_late(self, case: Case, job: SlurmJob, *, requeued: bool) -> None:
        try:
            self.guard()
        except (LeaseLostError, StoreError):
            self.late.add(
                LateCommand(
                    job_id=case.id,
                    allocation=case.reallocation.target or case.reallocation.source,
                    requeued=requeued,
                    restart_count=job.restart_count,
                    at=self.clock(),
                )
            )
            raise

    def release(self, case: Case) -> None:
        """Let the job go. Found held after this, it was held by a person, whose wish counts more.

        One that was not held when it was read is not released: whoever has held it since means it.
        """
        if case.job is None or case.job.held:
            self.slurm.release(case.id)
        self._released_here[case.reallocation.id] = self.clock()

    def forget_release(self, case: Case) -> None:
        """Let a job that was let go be given another shape, and be let go again."""
        self._released_here.pop(case.reallocation.id, None)

    def has_released(self, reallocation: Reallocation) -> bool:
        """Whether this process, and no earlier one, has released the job."""
        return reallocation.id in self._released_here

    def fails_as_over(self, case: Case) -> bool:
        """End the reallocation of a job that is over, unknown to Slurm for a while, or no longer ours."""
        job, number = case.job, case.reallocation.id
        if job is None:
            since = self._missing_since.setdefault(number, self.clock())
            if (self.clock() - since).total_seconds() > SETTLING_S:
                self.move(case.reallocation, Step.FAILED, "the job is gone")
            return True
        self._missing_since.pop(number, None)
        if job.state.is_over:
            self.move(case.reallocation, Step.FAILED, f"the job is {job.state.value}")
        elif not case.is_ours:
            if job.held and case.record is not None and job.user_name == case.record.user_name:
                # Its owner took the terms out of its Comment while we held it: let it go as it is.
                self.release(case)
            self.move(case.reallocation, Step.FAILED, NOT_OURS)
        else:
            return False
        return True


def _added(said: str | None, reason: str) -> str:
    return f"{said}; {reason}" if said else reason
