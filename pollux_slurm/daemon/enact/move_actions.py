"""What the steps of a reallocation share: the actions on an open move.

An action journals a step, by compare-and-set, or gives a Slurm command that depends on the state just read.
Before each, `guard` checks that this daemon still has the lease.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from pollux_slurm.config import DaemonConfig
from pollux_slurm.daemon.enact import time_limits
from pollux_slurm.daemon.enact.open_move import NOT_OURS, OpenMove, Step
from pollux_slurm.daemon.recovery.late_commands import LateCommand, LateCommands
from pollux_slurm.daemon.service.metrics import DaemonMetrics
from pollux_slurm.errors import JobStateError, LeaseLostError, SlurmError, StoreError
from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    JobState,
    SlurmAnswer,
    SlurmJob,
)
from pollux_slurm.now.refusals import request_of, verb_of
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import (
    GenerationMember,
    GenerationRecord,
    GenerationState,
    JobObservation,
    Reallocation,
    Refusal,
    Store,
)

_log = logging.getLogger(__name__)

# How long after a release Slurm's nodes may not show their free GPUs.
SETTLING_S = 5.0
# How old a command may be for slurmctld's clock, in whole seconds, to show when it took effect.
_PROMPT = timedelta(seconds=1)


@dataclasses.dataclass(slots=True)
class _SeenHere:
    """What this process has done and seen of an open reallocation.

    The step that it `journaled`; when it released the job, or has missed it in Slurm; what Slurm refused.
    `maybe_given_twice`: the previous daemon may also be about to give its command.
    """

    journaled: Step | None = None
    maybe_given_twice: bool = False
    released_at: datetime | None = None
    missing_since: datetime | None = None
    refusal: Refusal | None = None


class MoveActions:
    """The actions on open moves: journal entries and Slurm commands, each guarded by the lease.

    `slurm` calls `guard` itself, right before each command.
    """

    def __init__(
        self,
        *,
        slurm: SlurmClient,
        store: Store,
        config: DaemonConfig,
        clock: Callable[[], datetime],
        guard: Callable[[], None],
        metrics: DaemonMetrics | None = None,
        predecessor_may_live: Callable[[], bool] = lambda: False,
    ) -> None:
        self._metrics = metrics
        self.predecessor_may_live = predecessor_may_live
        self.slurm = slurm.guarded(guard)
        self.store = store
        self.config = config
        self.clock = clock
        self.guard = guard
        self.late = LateCommands(slurm=slurm, store=store, clock=clock)
        self._here: defaultdict[int, _SeenHere] = defaultdict(_SeenHere)

    def moves(self, snapshot: ClusterSnapshot) -> Sequence[OpenMove]:
        """Return every open reallocation with its job. The caller has read `snapshot` before."""
        jobs = {job.job_id: job for job in snapshot.jobs}
        records = {record.slurm_job_id: record for record in self.store.jobs.active()}
        now = self.clock()
        return [
            OpenMove(
                reallocation=reallocation,
                job=jobs.get(reallocation.slurm_job_id),
                record=records.get(reallocation.slurm_job_id),
                age_s=(now - (reallocation.entered_at(reallocation.step) or now)).total_seconds(),
            )
            for reallocation in self.store.journal.open_reallocations()
        ]

    def advance(
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
        """Journal a step; False when the reallocation is not at the expected step.

        A reason is appended to the journal's: why the move was planned comes first.
        """
        self.guard()
        if reason is not None:
            reason = _appended(reallocation.reason, reason)
        advanced = self.store.journal.advance(
            reallocation.id,
            step,
            expected=reallocation.step,
            at=self.clock(),
            reason=reason,
            time_left_s=time_left_s,
            checkpoint_waived=checkpoint_waived,
            continued_training=continued_training,
            job_failed=job_failed,
            taken_over=self._here[reallocation.id].maybe_given_twice,
        )
        if advanced:
            self._here[reallocation.id].journaled = step
            if step.is_end:
                del self._here[reallocation.id]
                if self._metrics is not None:
                    self._metrics.end_move(reallocation, step, self.clock())
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
        return advanced

    def request_regroup(self, move: OpenMove, members: Sequence[GenerationMember]) -> bool:
        """Plan the generation that a move in place asks for, and journal the step."""
        self.guard()
        planned = self.store.journal.request_regroup(
            move.reallocation.id, members, expected=move.reallocation.step, at=self.clock()
        )
        if planned is None:
            return False
        self._here[move.reallocation.id].journaled = Step.REGROUP_REQUESTED
        _log.info(
            "job %s: reallocation %d %s → %s: generation %d of %d processes",
            move.job_id,
            move.reallocation.id,
            move.reallocation.source,
            move.reallocation.target,
            planned.number,
            len(members),
        )
        return True

    def end_generation(
        self, move: OpenMove, generation: GenerationRecord, state: GenerationState, because: str
    ) -> bool:
        """Withdraw a planned generation, or fail a committed one; False where the job is just changing it."""
        self.guard()
        return self.store.generations.end(
            move.job_id, generation.number, state, at=self.clock(), reason=because
        )

    def retarget(self, move: OpenMove, target: Allocation, reason: str) -> OpenMove | None:
        """Journal another target of an open reallocation; None when it is not at the expected step."""
        self.guard()
        reallocation = move.reallocation
        full_reason = _appended(reallocation.reason, reason)
        if not self.store.journal.retarget(
            reallocation.id, target, expected=reallocation.step, reason=full_reason
        ):
            return None
        _log.info("job %s: reallocation %d goes to %s %s", move.job_id, reallocation.id, target, reason)
        changed = dataclasses.replace(reallocation, target=target, retargeted=True, reason=full_reason)
        return dataclasses.replace(move, reallocation=changed)

    def remember_refusal(self, move: OpenMove, answer: SlurmAnswer, reason: str) -> None:
        """Journal that Slurm refused the target, so that no round asks for it again soon."""
        assert move.job is not None
        self.guard()
        refusal = Refusal(
            allocation=move.reallocation.target,
            answer=answer,
            at=self.clock(),
            reason=reason,
            request=request_of(move.job),
        )
        self.store.journal.record_refusal(move.reallocation.id, refusal)
        self._here[move.reallocation.id].refusal = refusal
        _log.warning("job %s: Slurm %s %s: %s", move.job_id, verb_of(reason), refusal.allocation, reason)

    def refused_here(self, move: OpenMove) -> Refusal | None:
        """Return what Slurm has refused in this move since the jobs were read."""
        return self._here[move.reallocation.id].refusal

    def waited_s(self, move: OpenMove) -> float:
        """Return the seconds since the job's release, or, after a crash, in the present step."""
        since = self._here[move.reallocation.id].released_at
        return move.age_s if since is None else min(move.age_s, (self.clock() - since).total_seconds())

    # --------------------------------------------------------------------------- commands that hold a job

    def stop(self, move: OpenMove) -> OpenMove | None:
        """Journal the requeue and the job's time left; None when it is not at the expected step.

        Slurm counts the time limit anew from each start, so the time of earlier runs is subtracted here. A
        renewal gives the job its next slice instead.
        """
        left_s = time_limits.time_left_s(move.job, self.clock()) if move.job is not None else None
        if move.job is not None and move.record is not None and time_limits.is_renewal(move.reallocation):
            history = self.store.history.allocations(move.job_id)
            left_s = time_limits.next_slice_s(move.job, move.record, history, self.clock()) or left_s
        if not self.advance(move.reallocation, Step.REQUEUED, time_left_s=left_s):
            return None
        stopped = move.at(Step.REQUEUED)
        return dataclasses.replace(
            stopped, reallocation=dataclasses.replace(stopped.reallocation, time_left_s=left_s)
        )

    def requeue(self, move: OpenMove) -> None:
        """Requeue the running job, held."""
        number = move.reallocation.from_restart_count
        asked_at = self.clock()
        self._give_holding_command(
            move, lambda: self.slurm.requeue_hold(move.job_id, restart_count=number), requeued=True
        )
        self._record_end(move, asked_at)

    def _record_end(self, move: OpenMove, asked_at: datetime) -> None:
        """Record that a run ended just now, by slurmctld's clock. Slurm does not show the end of such a run.

        It does show those of wings. This host's clock may be wrong. An end that is not known to a second is
        estimated in the next round.
        """
        if move.job is None or move.job.wings:
            return
        try:
            ended_at = self.slurm.controller_time()
        except SlurmError as error:
            _log.info("job %s: the end of its run is estimated: %s", move.job_id, error)
            return
        if self.clock() - asked_at > _PROMPT:
            return
        seen = JobObservation(
            slurm_job_id=move.job_id,
            state=JobState.COMPLETING,
            allocation=Allocation(),
            started_at=move.job.started_at,
            ended_at=ended_at,
            restart_count=move.job.restart_count,
        )
        self.store.jobs.observe([seen], at=self.clock())

    def requeue_failed(self, move: OpenMove) -> None:
        """Requeue the failed job, held."""
        number = move.reallocation.from_restart_count
        self._give_holding_command(
            move, lambda: self.slurm.requeue_failed(move.job_id, restart_count=number), requeued=True
        )

    def hold(self, move: OpenMove) -> None:
        """Hold a pending job."""
        self._give_holding_command(move, lambda: self.slurm.hold(move.job_id), requeued=False)

    def _give_holding_command(self, move: OpenMove, command: Callable[[], None], *, requeued: bool) -> None:
        """Give a command that holds the job; remember it as late if the lease was lost meanwhile."""
        assert move.job is not None
        here = self._here[move.reallocation.id]
        if here.journaled is not move.reallocation.step and self.predecessor_may_live():
            here.maybe_given_twice = True
        try:
            command()
        except (JobStateError, LeaseLostError):
            raise  # it was not given
        except SlurmError:
            self._remember_if_late(
                move, move.job, requeued=requeued
            )  # without an answer, it may have taken effect
            raise
        self._remember_if_late(move, move.job, requeued=requeued)

    def _remember_if_late(self, move: OpenMove, job: SlurmJob, *, requeued: bool) -> None:
        try:
            self.guard()
        except (LeaseLostError, StoreError):
            self.late.add(
                LateCommand(
                    job_id=move.job_id,
                    allocation=move.reallocation.target or move.reallocation.source,
                    requeued=requeued,
                    restart_count=job.restart_count,
                    at=self.clock(),
                )
            )
            raise

    def release(self, move: OpenMove) -> None:
        """Release the job. If it is found held later, it was held externally, which wins.

        A job that was not held when it was read is not released, for the same reason.
        """
        if move.job is None or move.job.held:
            self.slurm.release(move.job_id)
        self._here[move.reallocation.id].released_at = self.clock()

    def forget_release(self, move: OpenMove) -> None:
        """Allow a released job to be reshaped and released again."""
        self._here[move.reallocation.id].released_at = None

    def has_released(self, reallocation: Reallocation) -> bool:
        """Whether this process has released the job."""
        return self._here[reallocation.id].released_at is not None

    def fail_if_over(self, move: OpenMove) -> bool:
        """Fail the reallocation of a job that is over, missing in Slurm, or not the registered one."""
        job, here = move.job, self._here[move.reallocation.id]
        if job is None:
            here.missing_since = here.missing_since or self.clock()
            if (self.clock() - here.missing_since).total_seconds() > SETTLING_S:
                self.advance(move.reallocation, Step.FAILED, "the job is gone")
            return True
        here.missing_since = None
        if job.state.is_over:
            self.advance(move.reallocation, Step.FAILED, f"the job is {job.state.value}")
        elif not move.is_ours:
            if job.held and move.record is not None and job.user_name == move.record.user_name:
                # Its owner removed the terms from its Comment while we held it: release it as it is.
                self.release(move)
            self.advance(move.reallocation, Step.FAILED, NOT_OURS)
        else:
            return False
        return True


def _appended(before: str | None, reason: str) -> str:
    return f"{before}; {reason}" if before else reason
