"""Answer for a checkpoint request while the script does something else: a validation over its own loader.

At the end of an adaptive loop a copy of all states is held in the host's memory. Until the next boundary a
thread of rank 0 looks for a request or SIGTERM and writes that copy: nothing is trained meanwhile, and after
a restart the code between the loops runs anew. So neither the script nor the other ranks need be asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pollux_slurm.agent.reporter import Reporter
from pollux_slurm.store.contract import CheckpointConfirmation
from pollux_slurm.torch.checkpoint import Written
from pollux_slurm.torch.stopping import StopFlag

_LOOK_EVERY_S = 0.2
# After a write that failed.
_RETRY_S = 10.0


class Standby:
    """Watches from its making to its `release`. `write` writes the copy, again after a failure."""

    def __init__(
        self,
        *,
        reporter: Reporter,
        stop: StopFlag,
        answered: int | None,
        write: Callable[[], Written],
    ) -> None:
        self._reporter, self._stop, self._answered, self._write = reporter, stop, answered, write
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
            request = self._reporter.checkpoint_request
            is_asked = request is not None and request != self._answered
            if not is_asked and not self._stop.is_set:
                continue
            written = self._write()
            if written.error is not None:
                pause_s = _RETRY_S
                continue
            if written.superseded is None:
                # Training stands still only from the next boundary on.
                self._reporter.confirm(
                    CheckpointConfirmation(
                        request_id=request if is_asked else None, blocked_s=0.0, size_bytes=written.size_bytes
                    )
                )
            return
