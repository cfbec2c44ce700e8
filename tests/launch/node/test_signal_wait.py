"""Waiting for signals in a process that is suspended and continued, as by `scontrol suspend`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pollux_slurm
from tests.waiting import wait_until

# Waits of 20 ms, until SIGUSR1 comes; prints whatever else they return.
WAITS = """
import signal
from pollux_slurm.launch.node.signal_wait import wait_for_signal
watched = {signal.SIGUSR1, signal.SIGCHLD, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, watched)
print("ready", flush=True)
while (found := wait_for_signal(watched, 0.02)) is None:
    pass
print(repr(found), wait_for_signal(watched, 0.0), flush=True)
"""


def test_that_a_wait_outlives_suspension_and_returns_the_signal_that_came() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(10):
            os.kill(process.pid, signal.SIGSTOP)
            wait_until(lambda: state(process.pid) == "T", timeout_s=60, what="the stop", every_s=0.01)
            # Longer than a wait: its time is over when it goes on.
            until_s = time.monotonic() + 0.04
            wait_until(
                lambda until_s=until_s: time.monotonic() > until_s, timeout_s=60, what="", every_s=0.01
            )
            os.kill(process.pid, signal.SIGCONT)
            wait_until(
                lambda: state(process.pid) != "T", timeout_s=60, what="the end of the stop", every_s=0.01
            )
        process.send_signal(signal.SIGUSR1)
        assert process.communicate(timeout=60)[0] == "<Signals.SIGUSR1: 10> None\n"


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_that_no_other_wait_with_a_time_limit_is_in_the_package() -> None:
    """Python's own returns an uninitialised record after SIGCONT."""
    package = Path(pollux_slurm.__file__).parent
    using = [path.name for path in package.rglob("*.py") if "signal.sigtimedwait(" in path.read_text()]
    assert using == []
