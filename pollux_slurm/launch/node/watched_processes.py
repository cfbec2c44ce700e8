"""Run processes on this machine: none outlives the launcher, and all end when one fails.

There are no signal handlers. The watched signals are blocked and fetched one by one, so none is lost between
two waits, and no code runs inside a handler.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pollux_slurm.agent.exit_codes import STOPPED_EXIT_CODES
from pollux_slurm.errors import LaunchError
from pollux_slurm.launch.node.signal_wait import wait_for_signal

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How the processes ended. `exit_code` is the first failing one's (128 + n for signal n), else 0.

    With `failed_by_itself`, it failed before the processes were asked to stop. After that, the code of one
    that has failed counts more than those of processes that have stopped.
    """

    exit_code: int
    failed_by_itself: bool


class ResizesRun(Protocol):
    """Decides which processes belong to a run while it lasts."""

    def note_started(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        """Note the processes of the start, in the order of their environments."""

    def advance(self, run: WatchedProcesses, *, is_ending: bool) -> None:
        """Start and end processes. `is_ending`: they were asked to stop, or one of them has failed."""

    def before_stop(self, run: WatchedProcesses) -> None:
        """Prepare for a signal to stop, which the processes get next."""

    def ends_run(self, run: WatchedProcesses, process: subprocess.Popen[bytes], code: int) -> bool:
        """Take note of a process that has ended; return whether the run fails with it."""


class WatchedProcesses:
    """Processes with one command, from their start to the end of the last: a node's ranks, or a job's srun.

    `on_failure` is called with exit code and rank of each process that fails before others are killed for it,
    unless they were asked to stop. `forward` is called with a forwarded signal instead of sending it to the
    processes. The kernel sends them `death_signal` if this process dies. It waits for signals `max_wait_s` at
    a time. To be used once, from the main thread.

    With `is_wrapped`, the command is a wrapper that starts the process that matters. Not every wrapper passes
    SIGTERM on (`unshare --fork`), and one that dies of it (a shell script) would take that process with it
    before its last checkpoint. So wrappers start with SIGTERM ignored, and all processes of the group get the
    signals.

    `resizing` lets processes join and leave meanwhile; it is asked at least every `max_wait_s`.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        *,
        kill_after_s: float,
        on_failure: Callable[[int, str | None], None] = lambda code, rank: None,
        forward: Callable[[int], None] | None = None,
        death_signal: int = signal.SIGKILL,
        monotonic: Callable[[], float] = time.monotonic,
        max_wait_s: float = 5.0,
        is_wrapped: bool = False,
        resizing: ResizesRun | None = None,
    ) -> None:
        self._command = list(command)
        self._environments = environments
        self._kill_after_s = kill_after_s
        self._on_failure = on_failure
        self._forward = forward if forward is not None else self._signal_all
        self._death_signal, self._is_wrapped = death_signal, is_wrapped
        self._monotonic, self._max_wait_s = monotonic, max_wait_s
        self._resizing = resizing
        self._prepare: Callable[[], None] | None = None
        self._running: list[subprocess.Popen[bytes]] = []
        self._ranks: dict[int, str | None] = {}
        self._first_failure: int | None = None
        self._failed_by_itself = False
        self._asked_to_stop = self._was_signalled = False
        self._interrupts = 0
        self._kill_at: float | None = None

    def run(self) -> ExitStatus:
        """Start all processes, wait for their end, and return how they ended.

        When one fails, the others get SIGTERM, and SIGKILL `kill_after_s` later. SIGTERM, SIGINT, SIGHUP,
        SIGUSR1 and SIGUSR2 are forwarded. After SIGTERM, SIGINT or SIGHUP there is no time limit; only a
        second SIGINT kills the processes. Raises `LaunchError` when the command cannot be started.
        """
        with blocked_signals() as (watched, mask):
            try:
                self._start_all(mask)
                while self._running:
                    self._wait(watched)
                    self._reap()
                    if self._resizing is not None:
                        is_ending = self._asked_to_stop or self._first_failure is not None
                        self._resizing.advance(self, is_ending=is_ending)
            finally:
                self._kill_all()
                for process in self._running:
                    process.wait()
        return ExitStatus(exit_code=self._first_failure or 0, failed_by_itself=self._failed_by_itself)

    def _start_all(self, mask: set[signal.Signals]) -> None:
        ignored = {signal.SIGTERM} if self._is_wrapped else set()
        self._prepare = _child_preparation(mask, ignored, self._death_signal)
        for environment in self._environments:
            self.start(environment)
        if self._resizing is not None:
            self._resizing.note_started(list(self._running))

    def start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start one more process, during `run`. Raises `LaunchError` where it cannot be started."""
        try:
            process = subprocess.Popen(
                self._command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                preexec_fn=self._prepare,
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
        self._ranks[process.pid] = environment.get("RANK")
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Ask one process to end, during `run`."""
        self._signal(process, signal.SIGTERM)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill one process and the child processes that it has, during `run`."""
        _kill_group(process.pid)

    def _wait(self, watched: set[signal.Signals]) -> None:
        """Wait for a signal and handle it; kill the processes when that is due."""
        limit_s = self._max_wait_s
        if self._kill_at is not None:
            limit_s = min(limit_s, max(self._kill_at - self._monotonic(), 0.0))
        found = wait_for_signal(watched, limit_s)
        if found is None:
            if self._kill_at is not None and self._monotonic() >= self._kill_at:
                self._kill_at = None
                self._kill_all()
            return
        if found == signal.SIGCHLD:
            return
        if found in STOPPING:
            self._asked_to_stop = True
            if self._resizing is not None:
                self._resizing.before_stop(self)
        self._was_signalled = True
        self._interrupts += found == signal.SIGINT
        if self._interrupts > 1:
            self._kill_all()
        else:
            self._forward(found)

    def _reap(self) -> None:
        for process in tuple(self._running):
            # Not reaped yet, so the process id cannot belong to another process.
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _kill_group(process.pid)  # including the child processes that it left
            code = process.wait()
            self._running.remove(process)
            is_failure = code != 0
            if self._resizing is not None:
                is_failure = self._resizing.ends_run(self, process, code)
            if is_failure:
                self._fail(code if code > 0 else 128 - code, self._ranks[process.pid])

    def _fail(self, code: int, rank: str | None) -> None:
        has_stopped, is_first = code in STOPPED_EXIT_CODES, self._first_failure is None
        # A training may stop by any signal, such as that of `sbatch --signal=USR1@90`.
        self._asked_to_stop |= is_first and has_stopped and self._was_signalled
        if is_first or (self._asked_to_stop and self._first_failure in STOPPED_EXIT_CODES):
            self._first_failure = code
        if self._asked_to_stop:
            return
        if is_first or (self._kill_at is not None and not has_stopped):
            self._on_failure(code, rank)
        if not is_first:
            return
        self._failed_by_itself = True
        self._signal_all(signal.SIGTERM)
        self._kill_at = self._monotonic() + self._kill_after_s

    def _signal_all(self, number: int) -> None:
        """Signal the processes, but not their children, which the last checkpoint may need.

        The children of a wrapper are signalled, as Slurm does: workers of the library's loaders ignore that.
        """
        for process in self._running:
            self._signal(process, number)

    def _signal(self, process: subprocess.Popen[bytes], number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if self._is_wrapped else os.kill)(process.pid, number)

    def _kill_all(self) -> None:
        for process in self._running:
            _kill_group(process.pid)


def start_error(program: str, error: OSError) -> LaunchError:
    """Return the error for a program that cannot be executed, with a shell's exit code."""
    missing = isinstance(error, FileNotFoundError)
    reason = "command not found" if missing else error.strerror
    failure = LaunchError(f"{program}: {reason}")
    failure.exit_code = 127 if missing else 126
    return failure


def start_thread(name: str, target: Callable[..., None], *args: object) -> None:
    """Start a daemon thread that gets no signal.

    The main thread waits for the signals that it has blocked. One that comes while it does something else
    would go to any thread that has not, and end the process.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        threading.Thread(target=target, args=args, name=name, daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def blocked_signals() -> Iterator[tuple[set[signal.Signals], set[signal.Signals]]]:
    """Block the watched signals; yield them, and the previous mask, which the children get."""
    # Signals that were ignored at the start (nohup, a background job of sh) stay ignored.
    watched = {number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}
    watched.add(signal.SIGCHLD)
    chld_before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    before = {signal.Signals(number) for number in mask}
    try:
        yield watched, before
    finally:
        while wait_for_signal({signal.SIGCHLD}, 0.0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGCHLD, chld_before if chld_before is not None else signal.SIG_DFL)


def _child_preparation(
    mask: set[signal.Signals], ignored: set[signal.Signals], death_signal: int
) -> Callable[[], None]:
    """Return what a child calls between fork and exec: process group, signals, and the mask of signals."""
    set_death_signal = die_with_parent(death_signal)

    def prepare() -> None:
        os.setpgid(0, 0)
        set_death_signal()
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return prepare


def die_with_parent(death_signal: int) -> Callable[[], None]:
    """Return what a child calls before exec to get `death_signal` when the thread that forked it dies."""
    # Loaded before the fork: few calls are safe between fork and exec.
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    return set_death_signal


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
