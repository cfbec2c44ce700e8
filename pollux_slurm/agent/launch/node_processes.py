"""Run a job's processes on one node and watch them: none outlives the launcher, none is left when one fails.

There are no signal handlers: the watched signals are blocked and fetched one by one, so nothing is lost
between a look and the next wait, and nothing runs inside a handler.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pollux_slurm.errors import LaunchError

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_LOOK_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How a set of processes ended. `exit_code` is the first failing one's (128 + n for signal n), else 0.

    `failed_by_itself` tells that it failed before anybody asked the processes to stop.
    """

    exit_code: int
    failed_by_itself: bool


class NodeProcesses:
    """The processes of one node, from their start to the end of the last.

    `forward` is called for a forwarded signal instead of sending it to the processes. `death_signal` is what
    the kernel sends them if this process dies. Used once, from the main thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        *,
        kill_after_s: float,
        on_failure: Callable[[int], None] = lambda code: None,
        forward: Callable[[int], None] | None = None,
        death_signal: int = signal.SIGKILL,
    ) -> None:
        self._command = list(command)
        self._environments = environments
        self._kill_after_s = kill_after_s
        self._on_failure = on_failure
        self._forward = forward if forward is not None else self._signal_all
        self._death_signal = death_signal
        self._running: list[subprocess.Popen[bytes]] = []
        self._first_failure: int | None = None
        self._failed_by_itself = False
        self._asked_to_stop = False
        self._interrupts = 0
        self._kill_at: float | None = None

    def run(self) -> ExitStatus:
        """Start all processes, wait for their end, and return how it went.

        When one fails the others get SIGTERM, and SIGKILL `kill_after_s` later. SIGTERM, SIGINT, SIGHUP,
        SIGUSR1 and SIGUSR2 are passed on; after one that asks to stop, the processes have all the time they
        need, and only a second SIGINT kills them. Raises `LaunchError` when the command cannot be started.
        """
        with _blocked() as (watched, mask):
            try:
                self._start(mask)
                while self._running:
                    self._wait(watched)
                    self._reap()
            finally:
                self._kill_all()
                for process in self._running:
                    process.wait()
        return ExitStatus(exit_code=self._first_failure or 0, failed_by_itself=self._failed_by_itself)

    def _start(self, mask: set[signal.Signals]) -> None:
        prepare = _child_preparation(mask, self._death_signal)
        for environment in self._environments:
            try:
                process = subprocess.Popen(
                    self._command,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    preexec_fn=prepare,
                )
            except OSError as error:
                raise start_error(self._command[0], error) from None
            except ValueError as error:  # a NUL character
                raise LaunchError(f"{self._command[0]!r} cannot be started: {error}") from None
            except subprocess.SubprocessError:
                raise LaunchError(
                    f"{self._command[0]} cannot be started: its process could not be set up"
                ) from None
            self._running.append(process)

    def _wait(self, watched: set[signal.Signals]) -> None:
        """Take the next signal, or what its time has come for."""
        limit_s = _LOOK_AGAIN_S
        if self._kill_at is not None:
            limit_s = min(limit_s, max(self._kill_at - time.monotonic(), 0.0))
        found = signal.sigtimedwait(watched, limit_s)
        if found is None:
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                self._kill_all()
            return
        if found.si_signo == signal.SIGCHLD:
            return
        self._asked_to_stop |= found.si_signo in _STOPPING
        self._interrupts += found.si_signo == signal.SIGINT
        if self._interrupts > 1:
            self._kill_all()
        else:
            self._forward(found.si_signo)

    def _reap(self) -> None:
        for process in tuple(self._running):
            # Looked at without reaping first: until then the number cannot belong to anything else.
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _kill_group(process.pid)  # what it started and left behind
            code = process.wait()
            self._running.remove(process)
            if code != 0 and self._first_failure is None:
                self._fail(code if code > 0 else 128 - code)

    def _fail(self, code: int) -> None:
        self._first_failure = code
        if self._asked_to_stop:
            return
        self._failed_by_itself = True
        self._on_failure(code)
        self._signal_all(signal.SIGTERM)
        self._kill_at = time.monotonic() + self._kill_after_s

    def _signal_all(self, number: int) -> None:
        """Signal the processes, but not what they started: the last checkpoint may need those."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def _kill_all(self) -> None:
        for process in self._running:
            _kill_group(process.pid)


def start_error(program: str, error: OSError) -> LaunchError:
    """Return the error for a program that cannot be executed, with the exit code that shells use."""
    missing = isinstance(error, FileNotFoundError)
    reason = "command not found" if missing else error.strerror
    failure = LaunchError(f"{program}: {reason}")
    failure.exit_code = 127 if missing else 126
    return failure


@contextlib.contextmanager
def _blocked() -> Iterator[tuple[set[signal.Signals], set[signal.Signals]]]:
    """Block the watched signals; gives them, and the mask that held before (and that children get)."""
    # What was ignored from the start (nohup, a background job of sh) stays ignored.
    watched = {number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}
    watched.add(signal.SIGCHLD)
    chld_before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    before = {signal.Signals(number) for number in mask}
    try:
        yield watched, before
    finally:
        while signal.sigtimedwait({signal.SIGCHLD}, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGCHLD, chld_before if chld_before is not None else signal.SIG_DFL)


def _child_preparation(mask: set[signal.Signals], death_signal: int) -> Callable[[], None]:
    """Return what a child does between fork and exec: be mortal, lead a group, hear signals again."""
    be_mortal = die_with_parent(death_signal)

    def prepare() -> None:
        os.setpgid(0, 0)
        be_mortal()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return prepare


def die_with_parent(death_signal: int) -> Callable[[], None]:
    """Return what a child does before exec to get `death_signal` when the thread that made it dies."""
    # Loaded before the fork: between fork and exec little may be done.
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def be_mortal() -> None:
        prctl(_PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return be_mortal


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
