"""Signals that end a rehearsal: a handler stores the first one, and the rehearsal checks for it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from pollux_slurm.errors import InterruptedBySignalError

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Interruption:
    """The first signal of SIGTERM, SIGINT and SIGHUP that has arrived."""

    def __init__(self) -> None:
        self._signal: signal.Signals | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Handle these signals meanwhile, in the main thread; one that is ignored (nohup) stays ignored."""
        handled = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._store) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def raise_if_interrupted(self) -> None:
        """Raise `InterruptedBySignalError` if a signal has arrived."""
        if self._signal is not None:
            raise InterruptedBySignalError(self._signal)

    def _store(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._signal is None:
            self._signal = signal.Signals(number)
