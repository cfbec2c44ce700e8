"""End a sandbox's processes: its jobs, then its daemons."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pollux_slurm.errors import PolluxError, SandboxError
from pollux_slurm.sandbox.files import Layout
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.system.process_control import (
    ProcessRecord,
    is_running,
    processes_with_environ,
    send_signal,
    stop_all,
)

MUNGED = "munged"
CONTROLLER = "slurmctld"

_POLL_S = 0.1
_JOB_GRACE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DownReport:
    """What `stop_cluster` ended: daemons by name, jobs, and processes of jobs that had to be killed."""

    stopped: tuple[str, ...]
    already_gone: tuple[str, ...]
    cancelled_jobs: int
    killed_processes: int


def stop_cluster(layout: Layout, daemons: Sequence[ProcessRecord], runner: CommandRunner) -> DownReport:
    """End all jobs and then `daemons`, some of which may have ended already.

    Raises `SandboxError` that names the processes that even SIGKILL did not end.
    """
    alive = {record.name for record in daemons if is_running(record)}
    cancelled = _cancel_jobs(runner) if {CONTROLLER, MUNGED} <= alive else 0
    if cancelled:
        _wait_steps_gone(layout, _JOB_GRACE_S)
    # slurmd waits for slurmstepd, and that waits up to KillWait for a task that ignores SIGTERM.
    leftovers = _job_tasks(layout)
    for task in leftovers:
        send_signal(task, signal.SIGKILL)
    if leftovers:
        _wait_steps_gone(layout, 3.0)
    # The nodes first, so that no job starts; munged last, since the others need it.
    nodes = [record for record in daemons if record.name not in (CONTROLLER, MUNGED)]
    left = list(stop_all(nodes, term_timeout_s=10.0))
    left += stop_all([*_step_managers(layout), *_job_tasks(layout)], term_timeout_s=0.5)
    for name in (CONTROLLER, MUNGED):
        left += stop_all([record for record in daemons if record.name == name], term_timeout_s=10.0)
    if left:
        numbers = ", ".join(f"{record.name} ({record.pid})" for record in left)
        raise SandboxError(f"cannot end {numbers}; run again: pollux sandbox down --dir {layout.dir}")
    return DownReport(
        stopped=tuple(record.name for record in daemons if record.name in alive),
        already_gone=tuple(record.name for record in daemons if record.name not in alive),
        cancelled_jobs=cancelled,
        killed_processes=len(leftovers),
    )


def _cancel_jobs(runner: CommandRunner) -> int:
    """Cancel all jobs; return how many there were."""
    with contextlib.suppress(PolluxError):
        listed = runner.run("squeue", "-h", "-o", "%A")
        jobs = sorted(set(listed.stdout.split())) if listed.exit_code == 0 else []
        if jobs:
            runner.run("scancel", "--state=PENDING", *jobs)  # first, or they would start on freed nodes
            runner.run("scancel", *jobs)
        return len(jobs)
    return 0


def _job_tasks(layout: Layout) -> list[ProcessRecord]:
    """Return the processes of the sandbox's jobs, even detached ones, by the SLURM_CONF that slurmd set."""
    conf = {"SLURM_CONF": str(layout.slurm_conf)}
    return processes_with_environ(conf, present=("SLURM_JOB_ID", "SLURMD_NODENAME"))


def _step_managers(layout: Layout) -> list[ProcessRecord]:
    conf = {"SLURM_CONF": str(layout.slurm_conf)}
    return [known for known in processes_with_environ(conf) if known.name == "slurmstepd"]


def _wait_steps_gone(layout: Layout, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while _step_managers(layout) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
