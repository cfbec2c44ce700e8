"""The steps before the requeue: planned → checkpoint_requested → checkpointed → requeued.

Until the requeue, a reallocation can be rolled back: the agent sees no request at its next poll, and training
continues.
"""

from __future__ import annotations

from pollux_slurm.daemon.decide.lent_gpus import is_of_decision, is_starting
from pollux_slurm.daemon.enact import admin_orders, time_limits
from pollux_slurm.daemon.enact.after_requeue import StepsAfterRequeue
from pollux_slurm.daemon.enact.gpu_ledger import RECEIVER_WAIT_S, GpuLedger
from pollux_slurm.daemon.enact.kept_places import KeptPlaces
from pollux_slurm.daemon.enact.move_actions import MoveActions
from pollux_slurm.daemon.enact.open_move import NOT_OURS, OpenMove, Step
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob
from pollux_slurm.daemon.recovery import failed_moves, failed_starts
from pollux_slurm.model import JobState
from pollux_slurm.store.contract.interface import RunPhase


class StepsUntilRequeue:
    """Requests a checkpoint, waits for it, and requeues the job."""

    def __init__(self, actions: MoveActions, restarting: StepsAfterRequeue, places: KeptPlaces) -> None:
        self._actions = actions
        self._places = places
        self._restarting = restarting

    def planned(self, move: OpenMove, ledger: GpuLedger) -> None:
        """Start when the target's GPUs are free, or when moves wait for each other."""
        reallocation, config = move.reallocation, self._actions.config
        if failed_moves.is_return(reallocation) or failed_starts.is_start_again(reallocation):
            # The job has ended already: there is no checkpoint to wait for.
            if (stopped := self._actions.stop(move)) is not None:
                self._restarting.requeued(stopped, ledger)
            return
        if not reallocation.moves_running:
            self._reshape_pending(move, ledger)
            return
        if self._roll_back_if_job_changed(move):
            return
        if ledger.target_is_lost(reallocation) and not time_limits.is_renewal(reallocation):
            self._roll_back(move, "the GPUs were taken by other jobs or the node drained")
        elif ledger.is_awaited(reallocation) and move.age_s < RECEIVER_WAIT_S:
            return
        elif ledger.is_free_for(reallocation) or ledger.may_break_cycle(reallocation):
            if self._is_starting(move):
                reason = "its run had made no step: there is nothing to save"
                self._actions.advance(reallocation, Step.CHECKPOINTED, reason, checkpoint_waived=True)
            elif self._actions.advance(reallocation, Step.CHECKPOINT_REQUESTED):
                ledger.reserve(reallocation)
        elif move.age_s > config.start_timeout_s + config.checkpoint_timeout_s:
            self._roll_back(move, "the GPUs did not become free in time")

    def _is_starting(self, move: OpenMove) -> bool:
        """Whether a job that is to make room has made no step yet."""
        reallocation = move.reallocation
        if move.job is None or move.record is None or not is_of_decision(reallocation):
            return False
        if not 0 < reallocation.target.num_gpus < reallocation.source.num_gpus:
            return False
        return is_starting(ManagedJob(slurm=move.job, record=move.record), self._actions.clock())

    def _reshape_pending(self, move: OpenMove, ledger: GpuLedger) -> None:
        """Reshape a pending job, which needs no checkpoint and no requeue."""
        job = move.job
        if job is None or job.state is not JobState.PENDING:
            self._roll_back(move, "the job is not pending")
        elif not move.is_ours:
            self._roll_back(move, NOT_OURS)
        elif job.held and not admin_orders.is_resume(move.reallocation):
            self._roll_back(move, "the job is held externally")
        elif self._actions.advance(move.reallocation, Step.RESHAPED):
            self._restarting.reshaped(move.at(Step.RESHAPED), ledger)

    def checkpoint_requested(self, move: OpenMove, ledger: GpuLedger) -> None:
        """Wait for the confirmation, which the store journals; after the time-out, the job's terms decide."""
        if self._roll_back_if_job_changed(move):
            return
        timeout_s = self._actions.config.checkpoint_timeout_s
        if move.age_s <= timeout_s:
            return
        missing = f"no checkpoint was confirmed in {timeout_s:g} s"
        if move.record is not None and move.record.terms.allow_unconfirmed:
            reason = f"{missing}; the owner allows to continue without"
            self._actions.advance(move.reallocation, Step.CHECKPOINTED, reason, checkpoint_waived=True)
        else:
            self._roll_back(move, missing)

    def checkpointed(self, move: OpenMove, ledger: GpuLedger) -> None:
        """Requeue the job, which waits with its checkpoint written, unless its target is lost."""
        reallocation = move.reallocation
        if self._roll_back_if_job_changed(move):
            return
        if ledger.target_is_lost(reallocation) and not time_limits.is_renewal(reallocation):
            self._roll_back(move, "the GPUs were taken while the job wrote its checkpoint")
        elif _trained_on(move):
            reason = "the job trained on after its checkpoint"
            self._actions.advance(reallocation, Step.ROLLED_BACK, reason, continued_training=True)
        elif (refused := self._places.reserve(move, ledger.snapshot)) is not None:
            self._roll_back(move, f"its place cannot be kept: {refused}")
        elif (stopped := self._actions.stop(move)) is not None:
            self._actions.requeue(stopped)

    def _roll_back_if_job_changed(self, move: OpenMove) -> bool:
        """Roll back when the job is not the running job that the move was planned for."""
        reason = move.change_of_running_job()
        if reason is not None:
            self._roll_back(move, reason)
        return reason is not None

    def _roll_back(self, move: OpenMove, reason: str) -> None:
        self._actions.advance(move.reallocation, Step.ROLLED_BACK, reason)


def _trained_on(move: OpenMove) -> bool:
    """Whether the job trains again, as it does when no daemon has renewed the lease for a while."""
    run = move.record.run if move.record else None
    confirmed_at = move.reallocation.entered_at(Step.CHECKPOINTED)
    return (
        run is not None
        and confirmed_at is not None
        and run.phase is RunPhase.TRAINING
        and run.last_report_at > confirmed_at
        and not move.reallocation.checkpoint_waived
    )
