"""Answer checkpoint requests between two adaptive loops, while the script runs, for example, a validation.

At the end of an adaptive loop all states are copied into the host's memory. Until the next boundary a thread
of rank 0 polls for a request or SIGTERM, and writes that copy. The copy stays valid: nothing is trained
meanwhile, and after a restart the code between the loops runs again. So neither the script nor the other
ranks take part. A request that waits for the epoch's end is answered here only if that does not come in time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pollux_slurm.agent.measure.report_builder import ReportBuilder
from pollux_slurm.agent.measure.reporter import Reporter
from pollux_slurm.model import JobWarning
from pollux_slurm.store.contract.interface import CheckpointConfirmation, RunPhase
from pollux_slurm.torch.boundary.sigterm import StopFlag
from pollux_slurm.torch.checkpoint.checkpoint_file import WriteResult

# After a request is withdrawn: the store drops it just before the requeue, whose SIGTERM comes a bit later.
GRACE_S = 3.0
_POLL_INTERVAL_S = 0.2
# After a write that failed.
_RETRY_S = 10.0


class BackgroundResponder:
    """Answers requests from its construction until `release`.

    `write` writes the copy, again after a failure. A request for which `should_wait` is True is not answered
    yet. After `release`, `confirmed` is the confirmation that is still valid: all ranks must wait to be
    stopped before another step. `answered` is the newest request that needs no answer.
    """

    def __init__(
        self,
        *,
        reporter: Reporter,
        report_builder: ReportBuilder,
        stop: StopFlag,
        answered: int | None,
        should_wait: Callable[[int], bool],
        write: Callable[[], WriteResult],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reporter, self._report_builder, self._stop, self._write = reporter, report_builder, stop, write
        self._should_wait, self._monotonic = should_wait, monotonic
        self.answered = answered
        self.confirmed: CheckpointConfirmation | None = None
        self._phase = report_builder.phase
        self._withdrawn_at_s: float | None = None
        self._written: WriteResult | None = None
        self._is_saved_for_stop = False
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pollux-checkpoint-responder", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Stop the thread, after a write under way."""
        self._released.set()
        self._thread.join()

    def _watch(self) -> None:
        pause_s = _POLL_INTERVAL_S
        while not self._released.wait(pause_s):
            pause_s = _POLL_INTERVAL_S
            request = self._reporter.checkpoint_request
            self._drop_if_withdrawn(request)
            is_requested = (
                request is not None
                and request not in (self.answered, self._confirmed_id)
                and not self._should_wait(request)
            )
            if not is_requested and not (self._stop.is_set and not self._is_saved_for_stop):
                continue
            # The copy does not change: one file answers all requests.
            written = self._written or self._write()
            if written.is_disk_full:
                self._report_builder.warn(JobWarning.DISK_FULL)
            if written.error is not None:
                pause_s = _RETRY_S
                continue
            if written.superseded is not None:
                # A newer run has begun. Training stops at the next boundary.
                return
            self._written = written
            self._confirm(request if is_requested else None, written.size_bytes)

    @property
    def _confirmed_id(self) -> int | None:
        return None if self.confirmed is None else self.confirmed.request_id

    def _confirm(self, request: int | None, size_bytes: int) -> None:
        confirmation = CheckpointConfirmation(request_id=request, blocked_s=0.0, size_bytes=size_bytes)
        if request is None:
            self._is_saved_for_stop = True
            if self.confirmed is not None:
                # The earlier confirmation must arrive, and names the same file.
                return
        else:
            self.confirmed, self._withdrawn_at_s = confirmation, None
            # Before the confirmation: a daemon that saw this run training would take the checkpoint for old.
            self._report_builder.set_phase(RunPhase.WAITING)
        self._reporter.confirm(confirmation)

    def _drop_if_withdrawn(self, request: int | None) -> None:
        """Forget a confirmed request that has been withdrawn for a while."""
        if self.confirmed is None or request == self.confirmed.request_id:
            self._withdrawn_at_s = None
        elif self._withdrawn_at_s is None:
            self._withdrawn_at_s = self._monotonic()
        elif self._monotonic() - self._withdrawn_at_s >= GRACE_S:
            self.answered, self.confirmed = self.confirmed.request_id, None
            self._reporter.withdraw_confirmation()
            self._report_builder.set_phase(self._phase)
            self._reporter.report_soon()
