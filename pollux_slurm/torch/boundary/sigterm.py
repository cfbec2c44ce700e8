"""SIGTERM as a flag. The handler does nothing else; training looks at the flag at its step boundaries."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, NoReturn

STOPPED_EXIT_CODE = 143


class TrainingStopped(SystemExit):
    """Ends the script after SIGTERM, with the exit code a shell gives that signal, its checkpoint written."""

    def __init__(self) -> None:
        super().__init__(STOPPED_EXIT_CODE)


class StopFlag:
    """Set by SIGTERM between `install` and `remove`. Only the main thread may install a handler."""

    def __init__(self) -> None:
        self.is_set = False
        self._before: Any = None
        self._installed = self._is_heeded = False

    def install(self) -> None:
        """Take over SIGTERM; nothing happens in a thread other than the main one."""
        if not self._installed and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._handle)
            self._installed = True

    def remove(self) -> None:
        """Give SIGTERM back to who had it."""
        if self._installed and threading.current_thread() is threading.main_thread():
            # None stands for a handler that was not installed from Python.
            signal.signal(signal.SIGTERM, self._before if self._before is not None else signal.SIG_DFL)
            self._installed = False

    def heed(self) -> NoReturn:
        """End the script. On its way out another SIGTERM changes nothing."""
        self.take()
        raise TrainingStopped

    def take(self) -> None:
        """Let SIGTERM count as heeded: the script ends by an error, which is to be seen."""
        self._is_heeded = True

    def pass_on(self) -> None:
        """Give SIGTERM back, and with it one that has come and was not heeded."""
        if self._is_heeded:
            return
        self.remove()
        if self.is_set:
            self.is_set = False
            signal.raise_signal(signal.SIGTERM)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.is_set = True
