"""Run a function as the members of a training that regroups: real processes under the launcher's `Resizing`.

They are forked as in `tests/torch/ranks.py`, because a launcher's own start takes seconds for each. What else
a launcher does, this does in the test's thread: it looks for ended processes, and ends all if one fails.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, cast

import torch

from pollux_slurm.agent.environment.layout import MEMBER_VARIABLE, RunLayout
from pollux_slurm.agent.environment.rank_environments import rank_environments
from pollux_slurm.agent.membership.folder import MembershipFolder
from pollux_slurm.agent.membership.resize_requests import ResizeAnswer, ResizeRequest, ResizeRequests
from pollux_slurm.launch.run.resizing import Resizing
from tests.torch.ranks import context

TIMEOUT_S = 180.0
_POLL_INTERVAL_S = 0.005


@dataclass
class Started:
    """One member's process."""

    member: str
    process: ForkServerProcess
    result: Path
    log: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid


class Members:
    """The members of one run. `kill_after_s` after the first failure, what still runs is killed."""

    def __init__(
        self,
        directory: Path,
        num_members: int,
        function: Callable[..., Any],
        *args: Any,
        env: Mapping[str, str] | None = None,
        restart_count: int = 0,
        kill_after_s: float = 60.0,
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="run-", dir=directory))
        self.folder, self._requests = MembershipFolder(self.home), ResizeRequests(self.home)
        self._answers: dict[str, ResizeAnswer] = {}
        self.warnings: list[str] = []
        self.started: list[Started] = []
        self.exit_codes: dict[str, int] = {}
        self.killed_for_hanging: list[str] = []
        self._function, self._args, self._kill_after_s = function, args, kill_after_s
        self._kill_at: float | None = None
        self._is_stopping = False
        layout = RunLayout(
            nodes=(("localhost", num_members),), master_addr="127.0.0.1", master_port=1, secret="f" * 32
        )
        environ = {
            "SLURM_RESTART_COUNT": str(restart_count),
            "GLOO_SOCKET_IFNAME": "lo",
            "PATH": os.environ["PATH"],
            **(env or {}),
        }
        self.resizing = Resizing(
            *(self.home, layout, environ),
            num_gpus=0,
            kill_after_s=kill_after_s,
            warn=self.warnings.append,
        )
        first = rank_environments(layout, 0, environ, rendezvous_file=self.home / "rendezvous")
        self._running: list[Started] = []
        processes = [self.start(one) for one in self.resizing.first_environments(first)]
        self.resizing.note_started(processes)

    # -------------------------------------------------------------------------- as WatchedProcesses does

    def start(self, environment: Mapping[str, str]) -> Any:
        """Start a member."""
        member = environment[MEMBER_VARIABLE]
        result, log = self.home / f"result-{member}.pt", self.home / f"log-{member}"
        process = context().Process(
            target=_main, args=(dict(environment), result, log, self._function, self._args)
        )
        process.start()
        one = Started(member=member, process=process, result=result, log=log)
        self.started.append(one)
        self._running.append(one)
        return process

    def poll(self) -> None:
        """Do what a launcher does at each moment."""
        for one in list(self._running):
            if one.process.is_alive():
                continue
            self._end(one)
            code = one.process.exitcode
            assert code is not None
            self.exit_codes[one.member] = code
            ends_run = self.resizing.ends_run(cast("Any", self), cast("Any", one.process), code)
            if ends_run and self._kill_at is None:
                self._kill_at = time.monotonic() + self._kill_after_s
                if not self._is_stopping:
                    self.signal(signal.SIGTERM)
        is_ending = self._is_stopping or self._kill_at is not None
        self.resizing.advance(cast("Any", self), is_ending=is_ending)
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            for one in self._running:
                self.killed_for_hanging.append(one.member)
                # Its threads' stacks go to its log.
                os.kill(one.pid, signal.SIGABRT)
            self._kill_at += self._kill_after_s

    def end(self, process: ForkServerProcess) -> None:
        """Ask one member to end."""
        process.terminate()

    def _end(self, one: Started) -> None:
        self._running.remove(one)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)

    # -------------------------------------------------------------------------------------- for the tests

    @property
    def running(self) -> list[str]:
        """The members whose processes run."""
        return [one.member for one in self._running]

    def signal(self, number: int) -> None:
        """Send a signal to each member, not to its data-loading workers."""
        for one in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, number)

    def terminate(self) -> None:
        """Stop the run by SIGTERM, as a launcher passes it on."""
        self._is_stopping = True
        self.resizing.before_stop(cast("Any", self))
        self.signal(signal.SIGTERM)

    def kill(self, which: str | ForkServerProcess) -> None:
        """Kill one member and its children."""
        pid = next(one.pid for one in self._running if which in (one.member, one.process))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def ask(self, num_processes: int, leaves: Sequence[int] = ()) -> ResizeRequest:
        """Ask as `pollux resize` does."""
        return self._requests.ask(num_processes, leaves)

    def answered(self, request: ResizeRequest) -> ResizeAnswer | None:
        """Return the answer to a request."""
        answer = self._requests.take_answer(request)
        if answer is not None:
            self._answers[request.id] = answer
        return self._answers.get(request.id)

    def until(self, condition: Callable[[], Any], *, what: str, timeout_s: float = TIMEOUT_S) -> Any:
        """Go on until a condition holds, or all have ended; return its value."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.poll()
            value = condition()
            if value or not self._running:
                return value
            if time.monotonic() > deadline:
                for one in self._running:
                    os.kill(one.pid, signal.SIGABRT)
                    one.process.join(10)
                raise AssertionError(f"gave up waiting for {what}\n{self.output()}")
            time.sleep(_POLL_INTERVAL_S)

    def resize(self, num_processes: int, leaves: Sequence[int] = ()) -> ResizeAnswer | None:
        """Ask, and return the answer; None where the run has ended without one."""
        request = self.ask(num_processes, leaves)
        answer: ResizeAnswer | None = self.until(
            lambda: self.answered(request), what=f"a resize to {num_processes}"
        )
        return answer

    def wait(self, *, timeout_s: float = TIMEOUT_S) -> dict[str, int]:
        """Wait for the end of all; return the exit codes by member."""
        self.until(lambda: False, what="the end of all members", timeout_s=timeout_s)
        return self.exit_codes

    def results(self) -> list[Any]:
        """Return what the members that came to the end of the function have returned."""
        return [torch.load(one.result, weights_only=True) for one in self.started if one.result.is_file()]

    def output(self) -> str:
        """Return the logs of all members, and the launcher's warnings."""
        logs = [
            f"--- member {one.member}\n{one.log.read_text()}" for one in self.started if one.log.is_file()
        ]
        return "\n".join([*logs, *self.warnings])


def _main(
    environ: Mapping[str, str], result: Path, log: Path, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """Run a function as Python runs a script, to its hooks for errors and its end."""
    os.setpgid(0, 0)
    os.environ.update(environ)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    faulthandler.enable(fd)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    torch.set_num_threads(1)
    code = 0
    try:
        torch.save(function(*args), result)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        sys.excepthook(*cast("Any", sys.exc_info()))
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)
