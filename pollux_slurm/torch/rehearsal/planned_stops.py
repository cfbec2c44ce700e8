"""The planned ends of a rehearsed run: it is stopped, or regroups, at moments that the plan names."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from pollux_slurm.agent.rehearsal_protocol import (
    NO_EPOCH,
    EventLog,
    RehearsalStore,
    RunPlan,
    Stop,
    StopMethod,
    StopMoment,
)
from pollux_slurm.torch.data.micro_batches import StepPlan
from pollux_slurm.torch.rehearsal.planned_regroups import PlannedRegroups
from pollux_slurm.torch.session.loader_protocol import Loader
from pollux_slurm.torch.session.session import Session

# A request takes this long at most to reach the training thread, and a copy of the states to be written.
_MAX_WAIT_S = 60.0
_POLL_INTERVAL_S = 0.01


class PlannedStops:
    """Stops the script at the planned moment, once, and asks for the planned regroups.

    `regroups` is None where this run has no launcher to ask. Nothing is asked for before `has_stepped`: the
    launcher takes the next request once the processes have made a step together.
    """

    def __init__(
        self,
        plan: RunPlan,
        session: Session,
        store: RehearsalStore,
        events: EventLog,
        regroups: PlannedRegroups | None,
    ) -> None:
        self._stop, self._session, self._store, self._events = plan.stop, session, store, events
        self._regroups = regroups
        self.has_stepped = False

    def at_step(self, loader: Loader, step: StepPlan) -> None:
        """Act at the end of a step."""
        stop = self._stop
        if stop is not None and stop.moment is StopMoment.STEP and self.is_due(stop, loader, step):
            self._stop_now(stop.method)
        self._ask_for_regroup(lambda planned: self.is_due(planned, loader, step))

    def after_loop(self, place: list[object]) -> None:
        """Act after a loop over a loader, on to the code that follows."""
        stop = self._stop
        if (
            stop is None
            or stop.moment is not StopMoment.AFTER_LOOP
            or place != [stop.epoch, stop.loader, stop.loop]
        ):
            return
        self._stop_now(stop.method)
        if self._session.rank == 0 and self._store.wait_for_confirmation(_MAX_WAIT_S):
            # As Slurm ends a validation that takes longer than KillWait.
            self._events.write("killed")
            os.kill(os.getpid(), signal.SIGKILL)

    def at_epoch_end(self, epoch: int) -> None:
        """Act at the end of an epoch."""
        stop = self._stop
        if stop is not None and stop.moment is StopMoment.EPOCH_END and stop.epoch == epoch:
            # The request is not to be answered with the copy of the states after the loop.
            self._session.boundary.release()
            self._stop_now(stop.method)
        # Also for one that was planned at a step which this epoch did not make.
        self._ask_for_regroup(lambda planned: planned.epoch <= epoch)

    def is_due(self, stop: Stop, loader: Loader, step: StepPlan) -> bool:
        """Return whether a step is the planned one, or a later one."""
        epoch = self._session.progress_state.epoch_key
        if not stop.loader:
            # Where a script counts its epochs itself, each loop counts as one.
            return max(epoch, loader.loop_number if epoch == NO_EPOCH else 0) > stop.epoch
        if epoch != stop.epoch:
            return epoch > stop.epoch
        if stop.moment is not StopMoment.STEP:
            return False
        is_loop = (loader.name_across_epochs, loader.loop_number) == (stop.loader, stop.loop)
        return is_loop and step.end >= stop.position

    def _stop_now(self, method: StopMethod) -> None:
        """Stop as in a job: SIGTERM to every rank, or a checkpoint request that rank 0 has polled."""
        self._stop = None
        self._events.write("stop", method=method, epoch=self._session.progress_state.epoch_key)
        if method is StopMethod.SIGTERM:
            signal.raise_signal(signal.SIGTERM)
        elif self._session.rank == 0:
            reporter = self._session.measurements.reporter
            assert reporter is not None
            self._store.request_checkpoint()
            deadline = time.monotonic() + _MAX_WAIT_S
            while reporter.checkpoint_request is None and time.monotonic() < deadline:
                time.sleep(_POLL_INTERVAL_S)

    def _ask_for_regroup(self, is_due: Callable[[Stop], bool]) -> None:
        """On rank 0: ask for the next regroup if it is due; end the run where one does not come about."""
        planned, session = self._regroups, self._session
        if planned is None or session.rank != 0 or session.stop.is_set:
            return
        number = session.regrouping.number
        stop = planned.next_after(number)
        if stop is not None and self.has_stepped and is_due(stop):
            planned.ask(stop, number, is_stopped=lambda: session.stop.is_set)
        if session.loops.is_running and planned.joins(session.world_size):
            planned.note_reason_to_wait(session.regrouping.replay.reason)
        if planned.note_answer():
            self._stop_now(StopMethod.SIGTERM)
