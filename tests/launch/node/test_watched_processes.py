"""Real processes of a node: exit codes, signals, and that none is left behind.

`WatchedProcesses` runs in its own process, since it blocks that process's signals.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import is_gone, wait_until

DRIVER = """
import os, sys, time
from pollux_slurm.launch.node.watched_processes import WatchedProcesses
count, kill_after_s, script = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
environments = [{**os.environ, "RANK": str(rank)} for rank in range(count)]
options = {}
if len(sys.argv) > 4:
    # Once that file exists, each reading of the clock exceeds the time to SIGKILL, on any machine.
    skipped_s = 0.0
    def monotonic():
        global skipped_s
        skipped_s += kill_after_s * os.path.exists(sys.argv[4])
        return time.monotonic() + skipped_s
    options = {"monotonic": monotonic, "max_wait_s": 0.05}
processes = WatchedProcesses([sys.executable, "-S", "-c", script], environments, kill_after_s=kill_after_s,
                          on_failure=lambda code, rank: print("failure", code, flush=True), **options)
status = processes.run()
print("outcome", status.exit_code, status.failed_by_itself, flush=True)
"""
# The ranks' script: RANK as r, and a function that writes marker files atomically.
PRELUDE = """
import os, signal, sys, time
r, marks = int(os.environ["RANK"]), os.environ["MARKS"]
def mark(name):
    path = os.path.join(marks, f"{name}.{r}")
    with open(path + ".new", "w") as file: file.write(str(os.getpid()))
    os.rename(path + ".new", path)
def wait_for(name):
    while not os.path.exists(os.path.join(marks, name)): time.sleep(0.01)
"""


class Driver:
    """A `WatchedProcesses` in its own process, and the marker files that its ranks write."""

    def __init__(
        self,
        folder: Path,
        script: str,
        *,
        count: int = 2,
        kill_after_s: float = 300.0,
        patient_until: Path | None = None,
    ) -> None:
        self.marks = folder
        until = [] if patient_until is None else [str(patient_until)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(count), str(kill_after_s), PRELUDE + script, *until],
            env={**os.environ, "MARKS": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def pids(self, name: str = "ready") -> list[int]:
        return [int(mark.read_text()) for mark in sorted(self.marks.glob(f"{name}.?"))]

    def wait_ready(self, count: int, name: str = "ready") -> list[int]:
        return wait_until(
            lambda: len(self.pids(name)) == count and self.pids(name), timeout_s=120, what=f"{count} x {name}"
        )

    def result(self) -> list[str]:
        return self.process.communicate(timeout=300)[0].splitlines()


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[list[Driver]]:
    started: list[Driver] = []
    yield started
    for driver in started:
        if driver.process.poll() is None:
            driver.process.kill()
        driver.process.communicate(timeout=120)
        for pid in (*driver.pids(), *driver.pids("child")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def start(drivers: list[Driver], folder: Path, script: str, **options: Any) -> Driver:
    drivers.append(Driver(folder, script, **options))
    return drivers[-1]


def test_that_the_exit_code_is_zero_if_all_processes_succeed(drivers: list[Driver], tmp_path: Path) -> None:
    assert start(drivers, tmp_path, "pass", count=3).result() == ["outcome 0 False"]


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("os.abort()", 134), ("1/0", 1)]
)
def test_that_the_first_failing_processs_code_is_returned_and_the_others_stop(
    drivers: list[Driver], tmp_path: Path, end: str, code: int
) -> None:
    script = f"""
mark("ready")
if r == 1:
    wait_for("ready.0")
    {end}
time.sleep(600)
"""
    driver = start(drivers, tmp_path, script)
    lines = driver.result()
    assert f"failure {code}" in lines
    assert lines[-1] == f"outcome {code} True"
    assert all(is_gone(pid) for pid in driver.pids())


def test_that_a_process_that_ignores_sigterm_is_killed_when_another_fails(
    drivers: list[Driver], tmp_path: Path
) -> None:
    script = """
signal.signal(signal.SIGTERM, lambda *_: mark("asked"))
mark("ready")
if r == 1:
    wait_for("ready.0")
    sys.exit(5)
while True: time.sleep(0.1)
"""
    driver = start(drivers, tmp_path, script, patient_until=tmp_path / "asked.0")
    assert driver.result()[-1] == "outcome 5 True"
    assert (tmp_path / "asked.0").exists()


def test_that_after_a_signal_the_processes_have_no_time_limit(drivers: list[Driver], tmp_path: Path) -> None:
    # Even with 0 seconds to SIGKILL, a checkpoint that is being written must be finished.
    script = """
def save(*_):
    mark("asked")
    wait_for("go")
    mark("saved"); sys.exit(0 if r == 0 else 9)
signal.signal(signal.SIGTERM, save)
mark("ready")
while True: time.sleep(0.1)
"""
    driver = start(drivers, tmp_path, script, kill_after_s=0.0)
    driver.wait_ready(2)
    driver.process.send_signal(signal.SIGTERM)
    driver.wait_ready(2, "asked")
    (tmp_path / "go").touch()
    assert driver.result() == ["outcome 9 False"]
    assert len(driver.pids("saved")) == 2


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGINT", "SIGHUP"])
def test_that_signals_are_forwarded(drivers: list[Driver], tmp_path: Path, name: str) -> None:
    script = f"""
signal.signal(signal.{name}, lambda *_: (mark("heard"), sys.exit(0)))
mark("ready")
while True: time.sleep(0.1)
"""
    driver = start(drivers, tmp_path, script)
    driver.wait_ready(2)
    driver.process.send_signal(getattr(signal, name))
    assert driver.result() == ["outcome 0 False"]
    assert len(driver.pids("heard")) == 2


def test_that_a_second_interrupt_kills_processes_that_ignore_the_first(
    drivers: list[Driver], tmp_path: Path
) -> None:
    script = """
signal.signal(signal.SIGINT, lambda *_: mark("heard"))
mark("ready")
while True: time.sleep(0.1)
"""
    driver = start(drivers, tmp_path, script)
    driver.wait_ready(2)
    driver.process.send_signal(signal.SIGINT)
    driver.wait_ready(2, "heard")
    driver.process.send_signal(signal.SIGINT)
    assert driver.result() == ["outcome 137 False"]


def test_that_the_children_of_a_process_are_killed_when_it_ends(
    drivers: list[Driver], tmp_path: Path
) -> None:
    script = """
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mark("child")
    time.sleep(600)
wait_for(f"child.{r}")
"""
    driver = start(drivers, tmp_path, script)
    assert driver.result() == ["outcome 0 False"]
    children = driver.pids("child")
    assert len(children) == 2
    wait_until(lambda: all(is_gone(pid) for pid in children), timeout_s=120, what="the children's end")


def test_that_no_process_outlives_a_killed_launcher(drivers: list[Driver], tmp_path: Path) -> None:
    driver = start(
        drivers, tmp_path, 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\nmark("ready")\ntime.sleep(600)'
    )
    pids = driver.wait_ready(2)
    driver.process.kill()
    wait_until(lambda: all(is_gone(pid) for pid in pids), timeout_s=120, what="the end of the ranks")


def test_that_children_receive_signals_and_have_no_stdin(drivers: list[Driver], tmp_path: Path) -> None:
    script = "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), repr(sys.stdin.read()), flush=True)"
    assert start(drivers, tmp_path, script, count=1).result() == ["set() ''", "outcome 0 False"]


@pytest.mark.parametrize(
    ("program", "code", "message"),
    [("no-such-program", 127, "command not found"), ("/etc/passwd", 126, "Permission denied")],
)
def test_that_a_command_that_cannot_be_run_is_one_line_with_a_shells_exit_code(
    program: str, code: int, message: str
) -> None:
    script = (
        "import os\n"
        "from pollux_slurm.launch.node.watched_processes import WatchedProcesses\n"
        "from pollux_slurm.errors import LaunchError\n"
        f"try: WatchedProcesses([{program!r}], [dict(os.environ)] * 2, kill_after_s=1).run()\n"
        "except LaunchError as error: print(error, error.exit_code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == f"{program}: {message} {code}"
