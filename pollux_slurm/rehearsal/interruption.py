"""A signal that asks a rehearsal to end: noted, and heeded where the script's processes can be ended."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from pollux_slurm.errors import InterruptedBySignalError

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Interruption:
    """The first signal of those that ask to end, None before it comes."""

    def __init__(self) -> None:
        self._signal: signal.Signals | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note such signals meanwhile, from the main thread; one that is ignored (nohup) stays so."""
        heard = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._note) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def raise_if_interrupted(self) -> None:
        """Raise `InterruptedBySignalError` if a signal has come."""
        if self._signal is not None:
            raise InterruptedBySignalError(self._signal)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._signal is None:
            self._signal = signal.Signals(number)
