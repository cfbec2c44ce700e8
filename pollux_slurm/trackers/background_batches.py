"""Values on their way to a server, in a thread of their own: training waits for none of them.

MLflow's own way of logging in the background waits at the process's end until each call has failed: five
minutes for every ten of them, while the job keeps its GPUs.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
# MLflow's server takes up to 1000 values in a call.
_BATCH_SIZE = 500
# Some ten minutes of a training with fifteen series and ten steps a second.
_MAX_WAITING = 100_000
# Slurm kills a job that is moved after 30 s (`KillWait`).
_TIMEOUT_S = 10.0


class BackgroundBatches(Generic[T]):
    """Hands values to `send`, in order and in batches; the oldest are lost if too many wait.

    At the process's end, too, it waits for a call of `send` for `timeout_s` at most.
    """

    def __init__(self, send: Callable[[Sequence[T]], None], *, timeout_s: float = _TIMEOUT_S) -> None:
        self._send, self._timeout_s = send, timeout_s
        self._lock = threading.Lock()
        self._waiting: deque[T] = deque(maxlen=_MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._num_calls = 0
        self._has_warned = False
        atexit.register(self.flush)

    def put(self, *values: T) -> None:
        """Add values."""
        with self._lock:
            self._waiting.extend(values)
            if self._thread is None:
                # A process does not wait for the end of its daemon threads.
                thread = threading.Thread(target=self._send_all, name="pollux-tracker", daemon=True)
                thread.start()
                self._thread = thread

    def flush(self) -> None:
        """Wait until all is sent, or a call takes longer than the time limit."""
        while (thread := self._thread) is not None:
            num_calls = self._num_calls
            thread.join(self._timeout_s)
            if thread.is_alive() and self._num_calls == num_calls:
                self._warn(f"it has not answered for {self._timeout_s:g} s")
                return

    def _send_all(self) -> None:
        while True:
            with self._lock:
                batch = list(itertools.islice(self._waiting, _BATCH_SIZE))
                for _ in batch:
                    self._waiting.popleft()
                if not batch:
                    self._thread = None
                    return
            try:
                self._send(batch)
            except Exception as error:
                self._warn(repr(error))
            self._num_calls += 1

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("values have not reached the tracker's server: %s", why)
