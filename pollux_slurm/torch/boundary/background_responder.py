"""Answer for a checkpoint request while the script does something else: a validation over its own loader.

At the end of an adaptive loop a copy of all states is held in the host's memory. Until the next boundary a
thread of rank 0 looks for a request or SIGTERM and writes that copy: nothing is trained meanwhile, and after
a restart the code between the loops runs anew. So neither the script nor the other ranks need be asked. A
request that waits for the epoch's end is answered here only if that does not come in time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pollux_slurm.agent.measure.report_builder import ReportBuilder
from pollux_slurm.agent.measure.reporter import Reporter
from pollux_slurm.store.contract.interface import CheckpointConfirmation, RunPhase
from pollux_slurm.torch.boundary.sigterm import StopFlag
from pollux_slurm.torch.checkpoint.checkpoint_file import Written

# After a request is gone: the store drops it just before the requeue, whose SIGTERM comes a moment later.
GRACE_S = 3.0
_LOOK_EVERY_S = 0.2
# After a write that failed.
_RETRY_S = 10.0


class Standby:
    """Watches from its making to its `release`. `write` writes the copy, again after a failure; a request
    that `is_awaited` is left alone for the time being.

    After the `release`, `confirmed` is what was confirmed and still stands: not one step may be trained
    before all ranks have waited to be stopped. `answered` is the newest request that needs no answer.
    """

    def __init__(
        self,
        *,
        reporter: Reporter,
        report_builder: ReportBuilder,
        stop: StopFlag,
        answered: int | None,
        is_awaited: Callable[[int], bool],
        write: Callable[[], Written],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reporter, self._telemetry, self._stop, self._write = reporter, report_builder, stop, write
        self._is_awaited, self._monotonic = is_awaited, monotonic
        self.answered = answered
        self.confirmed: CheckpointConfirmation | None = None
        self._phase = report_builder.phase
        self._gone_at_s: float | None = None
        self._written: Written | None = None
        self._is_saved_for_stop = False
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pollux-standby", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Stop watching; waits for a write under way."""
        self._released.set()
        self._thread.join()

    def _watch(self) -> None:
        pause_s = _LOOK_EVERY_S
        while not self._released.wait(pause_s):
            pause_s = _LOOK_EVERY_S
            request = self._reporter.checkpoint_request
            self._give_up_if_gone(request)
            is_asked = (
                request is not None
                and request not in (self.answered, self._confirmed_id)
                and not self._is_awaited(request)
            )
            if not is_asked and not (self._stop.is_set and not self._is_saved_for_stop):
                continue
            # The copy does not change: one file answers whatever comes.
            written = self._written or self._write()
            if written.error is not None:
                pause_s = _RETRY_S
                continue
            if written.superseded is not None:
                # Training stands still only from the next boundary on.
                return
            self._written = written
            self._confirm(request if is_asked else None, written.size_bytes)

    @property
    def _confirmed_id(self) -> int | None:
        return None if self.confirmed is None else self.confirmed.request_id

    def _confirm(self, request: int | None, size_bytes: int) -> None:
        confirmation = CheckpointConfirmation(request_id=request, blocked_s=0.0, size_bytes=size_bytes)
        if request is None:
            self._is_saved_for_stop = True
            if self.confirmed is not None:
                # That one must arrive, and holds the same.
                return
        else:
            self.confirmed, self._gone_at_s = confirmation, None
            # Before the confirmation: a daemon that saw this run training would take its checkpoint for old.
            self._telemetry.set_phase(RunPhase.WAITING)
        self._reporter.confirm(confirmation)

    def _give_up_if_gone(self, request: int | None) -> None:
        """Forget a confirmed request that has been withdrawn for a while."""
        if self.confirmed is None or request == self.confirmed.request_id:
            self._gone_at_s = None
        elif self._gone_at_s is None:
            self._gone_at_s = self._monotonic()
        elif self._monotonic() - self._gone_at_s >= GRACE_S:
            self.answered, self.confirmed = self.confirmed.request_id, None
            self._reporter.withdraw_confirmation()
            self._telemetry.set_phase(self._phase)
            self._reporter.report_soon()
