"""The steps after a job was stopped: requeued → reshaped → released → running → confirmed.

From `requeued` on, the job must run again. These shapes are tried in order: its target; if that is taken, the
nearest free allocation, or, if Slurm refuses it, the last one that it ran in, which becomes the target; the
most GPUs that one node has free; its minimum on any node. What Slurm refused is remembered
(`pollux_slurm.now.refusals`).

A paused job keeps its shape and is *parked*: released with a begin time some minutes ahead, which rounds set
again and again (`daemon.pause_ttl_s`). It is not held, for two reasons. Slurm does not show who holds a job,
so an external hold could not be recognised. And if no daemon returns, a parked job starts by itself.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from pollux_slurm.daemon.enact import admin_orders
from pollux_slurm.daemon.enact.gpu_ledger import GpuLedger
from pollux_slurm.daemon.enact.kept_places import KeptPlaces
from pollux_slurm.daemon.enact.move_actions import SETTLING_S, MoveActions
from pollux_slurm.daemon.enact.open_move import OpenMove, Step, has_target_shape
from pollux_slurm.daemon.enact.other_shapes import OtherShapes, needs_of
from pollux_slurm.daemon.recovery import failed_moves, failed_starts
from pollux_slurm.daemon.recovery.lost_places import HELD_EXTERNALLY
from pollux_slurm.errors import JobStateError, SlurmCommandError
from pollux_slurm.model import JobShape, JobState, SlurmAnswer, SlurmJob
from pollux_slurm.now import refusals
from pollux_slurm.store.contract.interface import Reallocation

_log = logging.getLogger(__name__)

# Slurm's own begin time of a requeued job is two minutes ahead.
_SOON, _BEGINS_WITHIN = timedelta(seconds=5), timedelta(seconds=125)


class StepsAfterRequeue:
    """Gives a stopped or pending job its new shape, and waits until it runs there."""

    def __init__(self, actions: MoveActions, places: KeptPlaces) -> None:
        self._actions = actions
        self._places = places
        self._shapes = OtherShapes(actions)

    def requeued(self, move: OpenMove, ledger: GpuLedger) -> None:
        """Wait until Slurm has killed the job; repeat the requeue if it may not have been given."""
        reallocation, job = move.reallocation, move.job
        if job is not None and self._requeue_if_failed(move, job):
            return
        if self._actions.fail_if_over(move):
            return
        assert job is not None
        was_requeued = job.restart_count > reallocation.from_restart_count
        if job.state is JobState.PENDING and was_requeued:
            if self._actions.advance(reallocation, Step.RESHAPED):
                self.reshaped(move.at(Step.RESHAPED), ledger)
        elif job.state is JobState.RUNNING and was_requeued:
            # An anchor that was itself requeued starts what its owner asked for.
            is_in_place = move.record is not None and move.record.terms.in_place
            started = "its anchor started it again" if is_in_place else "the job was started again externally"
            self._actions.advance(reallocation, Step.ROLLED_BACK, started)
        elif job.state is JobState.RUNNING:
            if move.age_s > self._actions.config.requeue_timeout_s:
                self._actions.advance(reallocation, Step.ROLLED_BACK, "Slurm did not requeue the job in time")
            else:
                self._actions.requeue(move)
        elif move.record is not None and move.record.terms.in_place:
            self._await_anchor(move, job)
        # COMPLETING: Slurm is killing it, within its own time-outs.

    def _await_anchor(self, move: OpenMove, job: SlurmJob) -> None:
        """Wait for the wing of the next start.

        Its anchor was itself requeued if the job had failed, or if it leaves its node. It would wait for two
        minutes, as after any requeue.
        """
        config, now = self._actions.config, self._actions.clock()
        if _runs_again(move.reallocation) and job.state is JobState.PENDING and job.held_since_requeue:
            self._actions.slurm.set_begin_time(move.job_id, ahead_s=1.0)
            self._actions.release(move)
        elif job.anchor_waits and not job.held and _waits_since_requeue(job, now):
            self._actions.slurm.set_begin_time(move.job_id, ahead_s=1.0)
        elif move.age_s > config.requeue_timeout_s + config.start_timeout_s:
            self._actions.advance(move.reallocation, Step.FAILED, "its anchor brought no wing in time")

    def _requeue_if_failed(self, move: OpenMove, job: SlurmJob) -> bool:
        """Requeue a failed job that is to run again; False for any other."""
        reallocation = move.reallocation
        if (
            job.state is not JobState.FAILED
            or not _runs_again(reallocation)
            or job.restart_count != reallocation.from_restart_count
            or not move.is_ours
        ):
            return False
        if move.age_s > self._actions.config.requeue_timeout_s:
            return False  # so the job is over
        self._actions.requeue_failed(move)
        return True

    def reshaped(self, move: OpenMove, ledger: GpuLedger) -> None:
        """Give the held job its new shape, or, for a pause, none and a begin time."""
        job = move.job
        if self._actions.fail_if_over(move):
            return
        assert job is not None
        if job.state is JobState.RUNNING:
            # A pending job was started by Slurm first, a requeued one externally.
            self._actions.advance(
                move.reallocation, Step.ROLLED_BACK, "the job started before it was reshaped"
            )
        elif job.state is JobState.PENDING and self._is_held_externally(move):
            self._actions.advance(move.reallocation, Step.FAILED, HELD_EXTERNALLY)
        elif job.state is JobState.PENDING and job.anchor_waits:
            self._actions.release(move)
            self._actions.advance(move.reallocation, Step.CONFIRMED)
        elif job.state is JobState.PENDING and move.reallocation.is_pause:
            self._park(move)
        elif job.state is JobState.PENDING:
            self._reshape_and_release(move, ledger)

    def _is_held_externally(self, move: OpenMove) -> bool:
        """Whether the pending job is held externally, and not by this reallocation. A drain ends held anyway.

        Nor is one that Slurm holds for its shape: that is ours.
        A reallocation holds its job only by the requeue. Slurm shows a later hold differently, unless the
        job's owner adds one to the requeue's. So an external hold wins, whichever daemon continues.
        """
        reallocation, job = move.reallocation, move.job
        if job is None or not job.held or admin_orders.is_drain(reallocation):
            return False
        if refusals.is_held_for_its_shape(job):
            return False
        if self._actions.has_released(reallocation):
            return True
        if admin_orders.is_resume(reallocation) and reallocation.step is Step.RESHAPED:
            return False
        runs = reallocation.from_restart_count + reallocation.moves_running
        return not (job.held_since_requeue or job.held_by_slurm) or job.restart_count != runs

    def _park(self, move: OpenMove) -> None:
        if admin_orders.is_drain(move.reallocation):
            # It stays held since the requeue, until it is resumed.
            if move.job is not None and not move.job.held:
                self._actions.hold(move)
            self._actions.advance(move.reallocation, Step.CONFIRMED)
            return
        try:
            left_s = move.reallocation.time_left_s
            self._actions.slurm.set_begin_time(
                move.job_id, ahead_s=self._actions.config.pause_ttl_s, time_limit_s=left_s
            )
        except JobStateError:
            raise
        except SlurmCommandError as error:
            self._actions.release(move)
            self._actions.advance(move.reallocation, Step.FAILED, f"Slurm refused its begin time: {error}")
            return
        if self._actions.advance(move.reallocation, Step.RELEASED):
            self._actions.release(move)

    def _reshape_and_release(self, move: OpenMove, ledger: GpuLedger) -> None:
        """Give the held job the best shape that Slurm accepts, and release it."""
        is_lost = move.reallocation.moves_running and ledger.target_is_lost(move.reallocation)
        if is_lost:
            other = self._shapes.choose_target(move, ledger)
            move, is_lost = other or move, other is None
        reason = None
        # A requeued job does not try a lost target; others are tried while jobs are still leaving it.
        refused = None if is_lost else self._reshape_to_target(move)
        if refused is not None:
            self._actions.remember_refusal(move, SlurmAnswer.NEVER, refused)
            other = self._shapes.choose_target(move, ledger, refused=refused)
            is_lost = other is None or self._reshape_to_target(other) is not None
            move, reason = other or move, f"Slurm refused the shape: {refused}" if is_lost else None
        if is_lost:
            self._reshape_to_first(move, self._shapes.on_any_node(move, ledger))
        if self._actions.advance(move.reallocation, Step.RELEASED, reason):
            self._release(move.at(Step.RELEASED), ledger, to_target=not is_lost)

    def _release(self, move: OpenMove, ledger: GpuLedger, *, to_target: bool) -> None:
        """Let the job start; in its target, before all that wait."""
        self._actions.release(move)
        if to_target:
            self._places.prioritise(move, reshaped=True)
        else:
            self._places.end_reservation(move.reallocation.id)

    def _reshape_to_target(self, move: OpenMove) -> str | None:
        """Give the job the shape of its target; return Slurm's error where it refuses."""
        shape = JobShape.of(move.reallocation.target, cpus_per_gpu=needs_of(move).cpus_per_gpu)
        return next(iter(self._reshape_to_first(move, [shape])), None)

    def _reshape_to_first(self, move: OpenMove, shapes: Iterable[JobShape]) -> list[str]:
        """Give the held job the first shape that Slurm accepts; return the errors of those before it."""
        refused: list[str] = []
        for shape in shapes:
            try:
                self._reshape(move, shape)
                break
            except JobStateError:
                raise
            except SlurmCommandError as error:
                refused.append(str(error))
                _log.warning("job %s: Slurm refused the shape %s: %s", move.job_id, shape, error)
        return refused

    def _reshape(self, move: OpenMove, shape: JobShape) -> None:
        left_s = move.reallocation.time_left_s
        self._actions.slurm.reshape(
            move.job_id, dataclasses.replace(shape, time_limit_s=left_s), known=move.job
        )

    def released(self, move: OpenMove, ledger: GpuLedger) -> None:
        """Wait for Slurm to start the job in its target, and give the target up when it is lost."""
        reallocation, job = move.reallocation, move.job
        if self._fail_if_job_failed(move) or self._actions.fail_if_over(move):
            return
        assert job is not None
        if job.state is JobState.PENDING and self._is_held_externally(move):
            self._actions.advance(reallocation, Step.FAILED, HELD_EXTERNALLY)
        elif job.state is JobState.PENDING and _needs_other_target(move, job):
            # The previous daemon may have died right after journaling the other target.
            self._reshape_to_target(move)
            self._release(move, ledger, to_target=True)
        elif refusals.is_held_for_its_shape(job) and self._actions.has_released(reallocation):
            self._give_up_target(move, job, ledger)
        elif job.state is JobState.PENDING and job.held:
            self._release(move, ledger, to_target=True)
        elif reallocation.is_pause:
            self._finish_pause(move, job)
        elif job.state is JobState.RUNNING:
            self._places.end_reservation(reallocation.id)
            self._actions.advance(reallocation, Step.RUNNING)
        elif job.state is JobState.PENDING:
            self._places.prioritise(move, reshaped=False)
            if job.reason != "BeginTime" and not _begins_later(job, self._actions.clock()):
                self._places.open_reservation(reallocation.id)
            is_lost = ledger.target_is_lost(reallocation)
            waited_s = self._actions.waited_s(move)
            open_s = min(waited_s, self._places.open_for_s(reallocation.id))
            is_never = refusals.answer_of(job.reason) is SlurmAnswer.NEVER
            # A reason may be from before the release: that of the job's own reservation, say.
            is_blocked = job.blocked_because is not None or refusals.is_of_limit(job.reason)
            never_starts = is_never or (is_blocked and open_s > SETTLING_S)
            is_late = waited_s > self._actions.config.start_timeout_s or never_starts
            if is_lost and not is_never:
                if waited_s > SETTLING_S:
                    self._give_up_target(move, job, ledger, is_lost=True)
            elif is_late:
                self._give_up_target(move, job, ledger)

    def _finish_pause(self, move: OpenMove, job: SlurmJob) -> None:
        """End a pause: the job is pending, not held, until a round gives it GPUs again."""
        reallocation = move.reallocation
        if job.state is JobState.PENDING:
            self._actions.advance(reallocation, Step.CONFIRMED)
        elif job.state is JobState.RUNNING:
            self._actions.advance(reallocation, Step.FAILED, "the job was started again externally")

    def _fail_if_job_failed(self, move: OpenMove) -> bool:
        """End the reallocation of a job that failed before its first step; it may return to its source."""
        reallocation, job = move.reallocation, move.job
        was_started = job is not None and job.restart_count == reallocation.from_restart_count + 1
        if (
            job is None
            or job.state is not JobState.FAILED
            or not (was_started and reallocation.moves_running)
        ):
            return False
        if _runs_again(reallocation):
            return False
        if not move.is_ours or _has_reported_step(move):
            return False
        reason = failed_moves.failure_reason(job, reallocation)
        self._actions.advance(reallocation, Step.FAILED, reason, job_failed=True)
        return True

    def _give_up_target(
        self, move: OpenMove, job: SlurmJob, ledger: GpuLedger, *, is_lost: bool = False
    ) -> None:
        """Let the job start with what fits now: once in another target, then on any node.

        A target that is not lost to others was refused by Slurm. Where nothing fits, the job is pending with
        its minimum, and the next rounds decide about it.
        """
        if not is_lost:
            self._actions.remember_refusal(move, refusals.answer_of(job.reason), job.reason)
        self._actions.forget_release(move)
        self._places.forget_priority(move.reallocation.id)
        retargeted = self._shapes.choose_target(move, ledger, refused=None if is_lost else job.reason)
        if retargeted is not None and self._reshape_to_target(retargeted) is None:
            self._release(retargeted, ledger, to_target=True)
            return
        move = retargeted or move
        self._reshape_to_first(move, self._shapes.on_any_node(move, ledger))
        self._release(move, ledger, to_target=False)
        self._actions.advance(
            move.reallocation, Step.FAILED, f"did not start in its new shape ({job.reason})"
        )

    def running(self, move: OpenMove, ledger: GpuLedger) -> None:
        """Compare the job's allocation with the target, and wait for its first step there."""
        reallocation, job = move.reallocation, move.job
        is_running = job is not None and job.state is JobState.RUNNING
        if job is not None and is_running and job.allocation != reallocation.target:
            self._actions.advance(
                reallocation, Step.FAILED, f"got {job.allocation} instead of {reallocation.target}"
            )
        elif job is not None and is_running and (mismatch := _gpu_mismatch(move, job, ledger)) is not None:
            self._actions.advance(reallocation, Step.FAILED, mismatch)
        elif _has_reported_step(move):
            self._actions.advance(reallocation, Step.CONFIRMED)
        elif self._fail_if_job_failed(move) or self._actions.fail_if_over(move):
            return
        elif job is not None and job.state is JobState.COMPLETING and not self._is_silent(move):
            return  # a moment later Slurm shows whether it has failed, and may return to its old shape
        elif not is_running:
            state = job.state.value if job else "gone"
            self._actions.advance(reallocation, Step.FAILED, f"the job is {state} before its first step")
        elif not reallocation.moves_running:
            # It was pending: there is no training to lose, so its start is enough.
            self._actions.advance(reallocation, Step.CONFIRMED)
        elif self._is_silent(move):
            self._actions.advance(reallocation, Step.FAILED, "no step was reported in the new shape in time")

    def _is_silent(self, move: OpenMove) -> bool:
        return move.age_s > self._actions.config.first_report_timeout_s


def _runs_again(reallocation: Reallocation) -> bool:
    """Whether a reallocation starts a job that has failed again."""
    return failed_moves.is_return(reallocation) or failed_starts.is_start_again(reallocation)


def _needs_other_target(move: OpenMove, job: SlurmJob) -> bool:
    reallocation = move.reallocation
    return reallocation.retargeted and not has_target_shape(job, reallocation)


def _begins_later(job: SlurmJob, now: datetime) -> bool:
    return job.begins_at is not None and job.begins_at > now


def _waits_since_requeue(job: SlurmJob, now: datetime) -> bool:
    """Whether a job waits for the begin time that Slurm sets at a requeue; a later one is its owner's."""
    return job.begins_at is not None and _SOON < job.begins_at - now <= _BEGINS_WITHIN


def _has_reported_step(move: OpenMove) -> bool:
    run = move.record.run if move.record else None
    return run is not None and run.restart_count > move.reallocation.from_restart_count and run.num_steps > 0


def _gpu_mismatch(move: OpenMove, job: SlurmJob, ledger: GpuLedger) -> str | None:
    """Return how the job's GPUs differ from the plan, by Slurm's types or the job's own count, or None."""
    wanted = job.requested_gpu_type
    for node, gpus in job.allocation.gpus_by_node:
        if wanted is not None and ledger.type_of(node) != wanted:
            return f"got {gpus} GPUs of type {ledger.type_of(node)} on {node}, not {wanted}"
    run = move.record.run if move.record else None
    if run is None or not run.gpus_per_node or not _has_reported_step(move):
        return None
    counted, planned = sorted(run.gpus_per_node), sorted(gpus for _, gpus in job.allocation.gpus_by_node)
    if counted != planned:
        return f"its run counts {counted} GPUs on its nodes, Slurm gave it {planned}"
    return None
