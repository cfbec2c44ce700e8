"""Signals to stop as a flag that the handler sets and the step boundary reads.

SIGTERM is one. So are signals that the script does not handle, which would end the process without its last
checkpoint: that of `sbatch --signal=USR1@90`, and that of a terminal that closes.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

from pollux_slurm.agent.exit_codes import STOPPED_BY_SIGTERM

_LOG = logging.getLogger(__name__)
_UNLESS_HANDLED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class TrainingStopped(SystemExit):
    """End the script after SIGTERM and its checkpoint, with the exit code that a shell gives that signal.

    A training loop raises it at a step's boundary. A script may catch it to clean up, and raises it again.

    Examples:
        >>> import signal
        >>> try:
        ...     for inputs, targets in pollux.AdaptiveDataLoader(dataset, batch_size=32):
        ...         signal.raise_signal(signal.SIGTERM)  # as Slurm sends it
        ... except pollux.TrainingStopped as stopped:
        ...     print(stopped.code)
        143
    """

    def __init__(self) -> None:
        super().__init__(STOPPED_BY_SIGTERM)


class StopFlag:
    """Set by a signal to stop between `install` and `remove`. Only the main thread may install handlers.

    `signal_name` is that of the last one. With `ends_unfinished`, the script was to end before its training
    was done: its exit code is not 0, even where the script catches what was to end it.
    """

    def __init__(self) -> None:
        self.is_set = self.ends_unfinished = False
        self.signal_name = signal.SIGTERM.name
        # The handlers before ours, by signal.
        self._previous: dict[signal.Signals, Any] = {}
        # A handler of SIGTERM that the script has set after ours, until ours calls it.
        self._later: Any = None
        # Whether it has returned from a SIGTERM, and what it has raised.
        self._is_answered, self._put_off = False, ""

    def install(self) -> None:
        """Install the handlers; nothing happens outside of the main thread."""
        if self._previous:
            self.take_back()
        if self._previous or threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, *_UNLESS_HANDLED):
            if number == signal.SIGTERM or not _is_handled(number):
                self._previous[number] = signal.signal(number, self._handle)

    def take_back(self) -> None:
        """Put ours before a handler of SIGTERM that the script has set since: on SIGTERM, ours calls it once.

        So it may call ours, or not, and may end the script: the checkpoint is written first.
        """
        if not self._previous or (theirs := signal.getsignal(signal.SIGTERM)) == self._handle:
            return
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._handle)
            self._previous[signal.SIGTERM] = theirs
            self._later = theirs if callable(theirs) else None

    def remove(self) -> None:
        """Restore the previous handlers, where ours still stand."""
        if threading.current_thread() is threading.main_thread():
            for number, previous in self._previous.items():
                if signal.getsignal(number) == self._handle:
                    # None stands for a handler that was not installed from Python.
                    signal.signal(number, previous if previous is not None else signal.SIG_DFL)
            self._previous.clear()
            self._later = None

    def raise_stopped(self) -> NoReturn:
        """End the script by `TrainingStopped`. Another signal meanwhile changes nothing."""
        self.ends_unfinished = True
        if self._put_off:
            _LOG.warning(
                "the script's own handler of SIGTERM%s, which was put off: on SIGTERM, pollux writes a "
                "checkpoint and ends the script itself. Let the handler return",
                self._put_off,
            )
        raise TrainingStopped

    def end_training(self) -> None:
        """Restore the handlers at an end that the script has chosen; its own gets a SIGTERM that came.

        Not again where it has returned from that. Without one the script goes on to its end: its training
        is done.
        """
        self.remove()
        if self.is_set and not self._is_answered and callable(signal.getsignal(signal.SIGTERM)):
            self.is_set = False
            signal.raise_signal(signal.SIGTERM)

    def leave_training(self) -> None:
        """Let an error leave the training: it is to end the script, also where a signal has come before.

        Then another signal changes nothing. Else the previous handlers are restored.
        """
        if self.is_set:
            self.ends_unfinished = True
        else:
            self.remove()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.signal_name, self.is_set = signal.Signals(number).name, True
        if number != signal.SIGTERM or self._later is None:
            return
        later, self._later = self._later, None
        try:
            later(number, frame)
            self._is_answered = True
        except BaseException as error:
            # Whatever it is, it is meant to leave the training, which must not end before its checkpoint.
            self._put_off = f"{_place(later)} raised {type(error).__name__}"


def end_as_stopped() -> None:
    """Let this process end with the code of a stopped one, whatever code Python has for it.

    Python has decided on its code before it calls the functions of `atexit`, this one among them. So the C
    library ends the process, when Python has done all it has to do.
    """
    library = ctypes.CDLL(None)
    library.fflush(None)
    library.__cxa_atexit(library._exit, ctypes.c_void_p(STOPPED_BY_SIGTERM), None)


def _is_handled(number: signal.Signals) -> bool:
    """Return whether the process catches or ignores a signal, also by a handler that is not Python's."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        return True
    # `faulthandler.register` sets its handler in C, which `getsignal` does not see.
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (number - 1) & 1)


def _place(handler: Any) -> str:
    code = getattr(handler, "__code__", None) or getattr(getattr(handler, "__func__", None), "__code__", None)
    return f" ({code.co_filename}, line {code.co_firstlineno})" if isinstance(code, CodeType) else ""
