"""SIGTERM as a flag that the signal handler sets and the step boundary reads."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, NoReturn

from pollux_slurm.agent.exit_codes import STOPPED_BY_SIGTERM


class TrainingStopped(SystemExit):
    """Ends the script after SIGTERM and its checkpoint, with the exit code that a shell gives that signal."""

    def __init__(self) -> None:
        super().__init__(STOPPED_BY_SIGTERM)


class StopFlag:
    """Set by SIGTERM between `install` and `remove`. Only the main thread may install a handler."""

    def __init__(self) -> None:
        self.is_set = False
        self._previous_handler: Any = None
        self._installed = self._is_handled = False

    def install(self) -> None:
        """Install the handler for SIGTERM; nothing happens outside of the main thread."""
        if not self._installed and threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, self._handle)
            self._installed = True

    def remove(self) -> None:
        """Restore the previous handler."""
        if self._installed and threading.current_thread() is threading.main_thread():
            # None stands for a handler that was not installed from Python.
            signal.signal(
                signal.SIGTERM,
                self._previous_handler if self._previous_handler is not None else signal.SIG_DFL,
            )
            self._installed = False

    def raise_stopped(self) -> NoReturn:
        """End the script by `TrainingStopped`. Another SIGTERM meanwhile changes nothing."""
        self.mark_handled()
        raise TrainingStopped

    def mark_handled(self) -> None:
        """Count SIGTERM as handled: the script ends by an error, which its log must show."""
        self._is_handled = True

    def restore_and_resend(self) -> None:
        """Restore the previous handler, and send it a SIGTERM that came and was not handled."""
        if self._is_handled:
            return
        self.remove()
        if self.is_set:
            self.is_set = False
            signal.raise_signal(signal.SIGTERM)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.is_set = True
