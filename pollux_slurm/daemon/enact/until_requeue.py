"""The steps before a job is touched: planned → checkpoint_requested → checkpointed → requeued.

Up to the requeue nothing has happened to the job: it is rolled back, the agent sees that nothing is asked any
more, and training goes on.
"""

from __future__ import annotations

from pollux_slurm.daemon.enact import admin_orders, time_limits
from pollux_slurm.daemon.enact.after_requeue import Restarting
from pollux_slurm.daemon.enact.awaited_gpus import GpuBook
from pollux_slurm.daemon.enact.open_reallocation import NOT_OURS, Case, Desk, Step
from pollux_slurm.daemon.recovery import failed_moves, failed_starts
from pollux_slurm.model import JobState
from pollux_slurm.store.contract.interface import RunPhase


class Stopping:
    """Asks for a checkpoint, waits for it, and puts the job back into the queue."""

    def __init__(self, desk: Desk, restarting: Restarting) -> None:
        self._desk = desk
        self._restarting = restarting

    def planned(self, case: Case, book: GpuBook) -> None:
        """Begin when the GPUs of the target are free, or nobody else will free them."""
        reallocation, config = case.reallocation, self._desk.config
        if failed_moves.is_return(reallocation) or failed_starts.is_start_again(reallocation):
            # The job has stopped by itself: there is no checkpoint to wait for.
            if (stopped := self._desk.stop(case)) is not None:
                self._restarting.requeued(stopped, book)
            return
        if not reallocation.moves_running:
            self._reshape_pending(case, book)
            return
        if self._roll_back_if_moved_on(case):
            return
        if book.lost_to_neighbours(reallocation) and not time_limits.is_renewal(reallocation):
            self._roll_back(case, "the GPUs were taken by other jobs or the node drained")
        elif book.is_free_for(reallocation) or book.may_break_cycle(reallocation):
            if self._desk.move(reallocation, Step.CHECKPOINT_REQUESTED):
                book.reserve(reallocation)
        elif case.age_s > config.start_timeout_s + config.checkpoint_timeout_s:
            self._roll_back(case, "the GPUs did not become free in time")

    def _reshape_pending(self, case: Case, book: GpuBook) -> None:
        """A job that waits in the queue needs no checkpoint and no requeue."""
        job = case.job
        if job is None or job.state is not JobState.PENDING:
            self._roll_back(case, "the job did not wait in the queue any more")
        elif not case.is_ours:
            self._roll_back(case, NOT_OURS)
        elif job.held and not admin_orders.is_resume(case.reallocation):
            self._roll_back(case, "the job is held by somebody else")
        elif self._desk.move(case.reallocation, Step.RESHAPED):
            self._restarting.reshaped(case.at(Step.RESHAPED), book)

    def checkpoint_requested(self, case: Case, book: GpuBook) -> None:
        """Wait for the confirmation, which the store journals; in vain, the owner's leave decides."""
        if self._roll_back_if_moved_on(case):
            return
        timeout_s = self._desk.config.checkpoint_timeout_s
        if case.age_s <= timeout_s:
            return
        waited = f"no checkpoint was confirmed in {timeout_s:g} s"
        if case.record is not None and case.record.terms.allow_unconfirmed:
            reason = f"{waited}; the owner allows to go on"
            self._desk.move(case.reallocation, Step.CHECKPOINTED, reason, checkpoint_waived=True)
        else:
            self._roll_back(case, waited)

    def checkpointed(self, case: Case, book: GpuBook) -> None:
        """Requeue the job that waits with its checkpoint written, unless its place is gone."""
        reallocation = case.reallocation
        if self._roll_back_if_moved_on(case):
            return
        if book.lost_to_neighbours(reallocation) and not time_limits.is_renewal(reallocation):
            self._roll_back(case, "the GPUs were taken while the job saved itself")
        elif _trains_again(case):
            reason = "the job went on training after its checkpoint"
            self._desk.move(reallocation, Step.ROLLED_BACK, reason, continued_training=True)
        elif (stopped := self._desk.stop(case)) is not None:
            self._desk.requeue(stopped)

    def _roll_back_if_moved_on(self, case: Case) -> bool:
        """Roll back when the job is no longer the running job that was planned for."""
        job = case.job
        if job is None or job.state.is_over:  # one that is over has no record among the active ones, either
            reason = f"the job is {job.state.value if job else 'gone'}"
        elif not case.is_ours:
            reason = NOT_OURS
        elif job.state is JobState.RUNNING:
            if job.restart_count == case.reallocation.from_restart_count:
                return False
            reason = "the job was requeued by another hand"
        else:
            reason = f"the job is {job.state.value}"
        self._roll_back(case, reason)
        return True

    def _roll_back(self, case: Case, reason: str) -> None:
        self._desk.move(case.reallocation, Step.ROLLED_BACK, reason)


def _trains_again(case: Case) -> bool:
    """Whether the agent gave up waiting, as it does when no daemon has been alive for a while."""
    run = case.record.run if case.record else None
    confirmed_at = case.reallocation.entered_at(Step.CHECKPOINTED)
    return (
        run is not None
        and confirmed_at is not None
        and run.phase is RunPhase.TRAINING
        and run.last_report_at > confirmed_at
        and not case.reallocation.checkpoint_waived
    )
