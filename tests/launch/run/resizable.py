"""A run whose processes join and leave, without torch: they speak the membership's protocol, and wait.

Files in `marks` say what they do: `end` ends them, with `hold` rank 0 commits nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.agent.membership.resize_requests import ResizeAnswer, ResizeRequest, ResizeRequests
from tests.waiting import is_gone, wait_until

_ROOT = Path(__file__).resolve().parents[3]
_DRIVER = """
import os, sys, time
from pathlib import Path
from pollux_slurm.agent.environment.layout import RunLayout
from pollux_slurm.agent.environment.rank_environments import rank_environments
from pollux_slurm.launch.run.resizing import Resizing
from pollux_slurm.launch.node.watched_processes import WatchedProcesses
from pollux_slurm.agent.membership.resize_requests import ResizeRequests
count, num_gpus, kill_after_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
python, folder, script = sys.argv[4:]
folder, environ, late_s = Path(folder), dict(os.environ), 0.0
def monotonic():
    # Once that file exists, each reading of the clock exceeds all time limits, on any machine.
    global late_s
    late_s += 5000 * os.path.exists(os.path.join(environ["MARKS"], "late"))
    return time.monotonic() + late_s
layout = RunLayout(nodes=(("localhost", count),), master_addr="127.0.0.1", master_port=1, secret="x")
command = [python, "-S", "-c", script]
resizing = Resizing(folder, layout, environ, num_gpus=num_gpus, kill_after_s=kill_after_s,
    warn=lambda text: print("warning:", text, flush=True), monotonic=monotonic)
def forward(number):
    processes._signal_all(number)
    # The launcher goes on when rank 0 has done what it does about a signal.
    while not os.path.exists(os.path.join(environ["MARKS"], "asked-0")):
        time.sleep(0.005)
with ResizeRequests(folder).announced(["train"]):
    processes = WatchedProcesses(command, resizing.first_environments(rank_environments(layout, 0, environ)),
        kill_after_s=kill_after_s, resizing=resizing, max_wait_s=0.02, forward=forward)
    status = processes.run()
print("outcome", status.exit_code, status.failed_by_itself, resizing.num_processes, flush=True)
"""
_MEMBER = f"""
import json, os, pathlib, signal, sys, time
sys.path.insert(0, {str(_ROOT)!r})
from pollux_slurm.agent.membership.folder import FolderMembership
marks, rank = pathlib.Path(os.environ["MARKS"]), int(os.environ["RANK"])
joins = int(os.environ.get("POLLUX_JOINS", "0")) or None
membership = FolderMembership(
    pathlib.Path(os.environ["POLLUX_MEMBERSHIP"]), os.environ["POLLUX_MEMBER"], joins=joins)
me = membership.member
def mark(name, text=""):
    (marks / f".{{name}}-{{me}}").write_text(str(text))
    (marks / f".{{name}}-{{me}}").rename(marks / f"{{name}}-{{me}}")
def has(name):
    return (marks / name).exists()
def wait_for(name):
    while not has(name): time.sleep(0.005)
def left(): pass
def joined(): pass
def planned(plan):
    if not has("hold"): commit(plan)
def commit(plan):
    is_committed = membership.commit(plan.number)
    if is_committed: (marks / f"generation-{{plan.number}}").touch()
    return is_committed
names = ("POLLUX_JOINS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "POLLUX_RENDEZVOUS_FILE")
mark("environ", json.dumps({{name: os.environ.get(name) for name in names}}))
mark("pid", os.getpid())
"""
_LOOP = """
number = 0 if joins is None else joins - 1
if joins:
    membership.report_ready()
while not has("end"):
    names = [int(path.name.partition("-")[2]) for path in marks.glob("generation-*")]
    if names and max(names) > number:
        generation = membership.committed(max(names))
        rank = None if generation is None else generation.rank_of(me)
        if rank is None:
            left()
            sys.exit(0)
        number = generation.number
        joined()
        if rank == 0: membership.report_regrouped(number, standstill_s=0.5)
    if rank == 0:
        plan = membership.planned(number)
        if plan is not None: planned(plan)
    time.sleep(0.005)
"""


class ResizableRun:
    """A launcher in its own process. `script` is run by each process before its loop."""

    def __init__(
        self,
        home: Path,
        script: str = "",
        *,
        count: int = 2,
        num_gpus: int = 0,
        kill_after_s: float = 1000.0,
    ) -> None:
        self.marks, self.folder = home / "marks", home / "pollux-run-x"
        for folder in (self.marks, self.folder):
            folder.mkdir(parents=True)
        # The command can be taken away.
        self.python = home / "python"
        self.python.symlink_to(sys.executable)
        self.requests = ResizeRequests(self.folder)
        member = _MEMBER + script + _LOOP
        numbers = [str(count), str(num_gpus), str(kill_after_s)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _DRIVER, *numbers, self.python, self.folder, member],
            env={**os.environ, "MARKS": str(self.marks)},
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def mark(self, name: str) -> None:
        (self.marks / name).touch()

    def wait_for(self, name: str, *, folder: Path | None = None) -> Path:
        path = (folder or self.marks) / name
        wait_until(path.exists, timeout_s=120, what=str(path), every_s=0.01)
        return path

    def wait_for_plan(self, number: int) -> None:
        self.wait_for(f"plan-{number:06d}.json", folder=self.folder)

    def pid(self, member: str) -> int:
        return int(self.wait_for(f"pid-{member}").read_text())

    def environ(self, member: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.wait_for(f"environ-{member}").read_text())
        return found

    def ask(self, num_processes: int, *leaves: int) -> ResizeRequest:
        return self.requests.ask(num_processes, leaves)

    def answer(self, request: ResizeRequest) -> ResizeAnswer:
        return wait_until(
            lambda: self.requests.take_answer(request), timeout_s=120, what="an answer", every_s=0.01
        )

    def resize(self, num_processes: int, *leaves: int) -> ResizeAnswer:
        return self.answer(self.ask(num_processes, *leaves))

    def end(self) -> list[str]:
        """Let the processes end; return the launcher's output."""
        self.mark("end")
        return self.output()

    def output(self) -> list[str]:
        return self.process.communicate(timeout=300)[0].splitlines()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()  # its processes die with it
        self.process.communicate(timeout=120)


@pytest.fixture
def runs() -> Iterator[list[ResizableRun]]:
    started: list[ResizableRun] = []
    yield started
    for run in started:
        run.close()


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid), timeout_s=120, what=f"the end of {pid}", every_s=0.01)
