"""What becomes of a regroup that fails: the states are written as a checkpoint, and the process ends.

The main thread may be waiting for a member that is gone, for minutes while a group is made. So another thread
looks whether the generation was given up.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

_LOG = logging.getLogger(__name__)
_POLL_INTERVAL_S = 0.1
# For the main thread to end by an error of its own, which says more.
_GRACE_S = 2.0
# Longer than newcomers wait for the others, and the start of NCCL and the states of a large model take.
_TIMEOUT_S = 1200.0


class Rescue:
    """Guards a regroup. `states` are those in this process, None without any; `save` writes some."""

    def __init__(
        self,
        states: Mapping[str, Any] | None,
        *,
        save: Callable[[Mapping[str, Any]], object],
        is_given_up: Callable[[], bool],
    ) -> None:
        self.states, self._save, self._is_given_up = states, save, is_given_up
        self._is_over, self._is_saved, self._lock = threading.Event(), False, threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Begin to look whether the generation was given up: it is committed, so that is its end."""
        self._thread = threading.Thread(target=self._watch, name="pollux-regroup", daemon=True)
        self._thread.start()

    def save(self) -> None:
        """Write the states, once."""
        with self._lock:
            if self.states is not None and not self._is_saved:
                self._is_saved = True
                self._save(self.states)

    def end(self) -> None:
        """End the guard: the regroup is over, or its error ends the process."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while not self._is_over.wait(_POLL_INTERVAL_S):
            if self._is_given_up() or time.monotonic() >= deadline:
                break
        if self._is_over.wait(_GRACE_S):
            return
        _LOG.error("the replicas could not regroup: one of them has ended, or does not answer")
        self.save()
        if not self._is_over.is_set():
            os._exit(1)
