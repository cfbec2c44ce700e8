"""Find the trainings on this machine that `pollux run --in-place` has started, and resize one."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pollux_slurm.agent.membership.resize_requests import (
    AnnouncedRun,
    ResizeAnswer,
    ResizeRequest,
    ResizeRequests,
)
from pollux_slurm.errors import LaunchError, UsageError
from pollux_slurm.launch.node.rendezvous import RUN_FOLDER_PREFIX

_POLL_INTERVAL_S = 0.05
# The launcher looks for what was withdrawn many times a second.
_WITHDRAWAL_TIMEOUT_S = 5.0


def find_local_run(pid: int | None) -> ResizeRequests:
    """Return the requests of this user's only run, or of the one with process id `pid`.

    Raises `UsageError` where there is none, or more than one to choose from.
    """
    found: list[tuple[AnnouncedRun, ResizeRequests]] = []
    for path in Path(tempfile.gettempdir()).glob(f"{RUN_FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            # A link would be a second name of a run, which anybody may make in /tmp.
            if path.lstat().st_uid == os.getuid():
                requests = ResizeRequests(path)
                run = requests.run()
                if run is not None:
                    found.append((run, requests))
    if not found:
        raise UsageError(
            f"no training on this machine can be resized (none in {tempfile.gettempdir()}; TMPDIR must be "
            "the run's): start one with `pollux run --in-place -- python train.py`"
        )
    matching = [requests for run, requests in found if pid in (None, run.pid)]
    if len(matching) == 1:
        return matching[0]
    found.sort(key=lambda one: (one[0].pid, one[0].command))
    listed = "; ".join(f"--run {run.pid} ({run.command})" for run, _ in found)
    raise UsageError(f"which run? {listed}" if pid is None else f"no such run; there is {listed}")


def resize_local_run(
    num_processes: int, *, leaves: Sequence[int] = (), pid: int | None = None, timeout_s: float
) -> str:
    """Let processes join or leave a run on this machine, and return what came of it.

    After `timeout_s`, and when interrupted, the request is withdrawn. Raises `LaunchError` where the
    processes go on as they were, or the run has ended.
    """
    requests = find_local_run(pid)
    request = requests.ask(num_processes, leaves)
    reason, exit_code = f"not done within {timeout_s:g} s", LaunchError.exit_code
    try:
        answer = _wait(requests, request, timeout_s)
    except KeyboardInterrupt:
        answer, reason, exit_code = None, "interrupted", 130
    if answer is None and not requests.withdraw(request):
        # The launcher has begun with it.
        answer = _wait(requests, request, _WITHDRAWAL_TIMEOUT_S)
        if answer is None:
            reason += "; too late to withdraw it: the processes are changing"
            raise _error(reason, exit_code)
    elif answer is not None:
        reason = answer.text
    if answer is not None and answer.is_done:
        return answer.text
    raise _error(f"the processes go on as they were: {reason}", exit_code)


def _error(text: str, exit_code: int) -> LaunchError:
    error = LaunchError(text)
    error.exit_code = exit_code
    return error


def _wait(requests: ResizeRequests, request: ResizeRequest, timeout_s: float) -> ResizeAnswer | None:
    """Wait for an answer; None where there is none. Raises `LaunchError` when the run has ended."""
    deadline = time.monotonic() + timeout_s
    while True:
        is_running = requests.run() is not None
        answer = requests.take_answer(request)
        if answer is not None:
            return answer
        if not is_running:
            raise LaunchError("the run has ended before it was done: see its output")
        if time.monotonic() >= deadline:
            return None
        time.sleep(_POLL_INTERVAL_S)
