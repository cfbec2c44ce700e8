"""One step of a Slurm job: srun starts the program of each node, with all of the job's resources there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pollux_slurm.agent.environment.layout import STEP_VARIABLE, RunLayout
from pollux_slurm.agent.exit_codes import STOPPED_BY_SIGTERM
from pollux_slurm.errors import PrivateFileError
from pollux_slurm.launch.node.containers import (
    is_given,
    node_command,
    srun_starts_container,
    wrapped_command,
)
from pollux_slurm.launch.node.watched_processes import ExitStatus, WatchedProcesses
from pollux_slurm.launch.step.controller import wait_for_controller
from pollux_slurm.launch.step.missing_gpus import (
    MAX_RESTARTS,
    requeue_if_gpus_missing,
    was_stopped_by_slurm,
)
from pollux_slurm.launch.step.step_numbers import skip_step_numbers
from pollux_slurm.launch.step.step_signals import signal_step
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.system.private_files import read_private

# srun reads these as options. Some are stale after a requeue with another allocation, some contradict the
# options below, and --export=NONE of the submission would hide our variables from the step.
_STALE_PREFIXES = ("SLURM_NTASKS", "SLURM_GPUS", "SLURM_GPU_", "SLURM_CPU_BIND", "SLURM_MEM_", "SLURM_STEP_")
_STALE = frozenset(
    {
        *("SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK"),
        *("SLURM_CPUS_PER_GPU", "SLURM_TRES_PER_TASK", "SLURM_ARBITRARY_NODELIST", "SLURM_DISTRIBUTION"),
        *("SLURM_DIST_PLANESIZE", "SLURM_DIST_LLLP", "SLURM_HINT", "SLURM_THREADS_PER_CORE"),
        *("SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_OVERCOMMIT", "SLURM_WAIT", "SLURM_KILL_BAD_EXIT"),
        *("SLURM_EXPORT_ENV", "SLURM_STEPID"),
    }
)

# How long a file that another node has made may take to be seen here.
_LATE_FILE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedJob:
    """What is needed to start a step. `all_nodes` is False when nodes without a GPU are left out.

    `port` reserves the layout's port while it is open. `wrapper` and `srun_arguments` are those of the
    options, `required_paths` what the processes must see in a container.
    """

    layout: RunLayout
    environ: Mapping[str, str]
    runner: CommandRunner
    connect: Callable[[], SlurmClient]
    warn: Callable[[str], None]
    all_nodes: bool
    port: socket.socket
    wrapper: tuple[str, ...] = ()
    srun_arguments: tuple[str, ...] = ()
    required_paths: tuple[Path, ...] = ()

    @property
    def is_in_container(self) -> bool:
        """Whether srun starts its tasks in a container."""
        return srun_starts_container(self.srun_arguments, self.environ)


def run_step(command: Sequence[str], job: PreparedJob) -> ExitStatus:
    """Run the layout as one step of the job, and return how it ended.

    Its exit code is that of the first process that failed by itself, which its node writes to the exit file.
    srun's own code is the greatest of all nodes', and a node that is stopped after another's failure ends
    with 143.
    """
    layout = job.layout
    if job.is_in_container:
        layout = replace(layout, required_paths=job.required_paths)
    if job.wrapper:
        command = wrapped_command(command, job.wrapper, job.required_paths, environ=job.environ)
    if layout.exit_file is not None:
        with contextlib.suppress(OSError):
            layout.exit_file.unlink()
    end_files = [file for index in range(len(layout.nodes)) if (file := layout.end_file(index)) is not None]
    node = node_command(python=sys.executable, in_container=job.is_in_container)
    argv = [job.runner.find("srun"), *srun_options(job), *node, *command]
    restart_count = int(job.environ.get("SLURM_RESTART_COUNT") or 0)
    environ = step_environment(job.environ)
    wait_for_controller(job.runner, job.warn)
    skip_step_numbers(restart_count, runner=job.runner, environ=environ)
    environ |= {STEP_VARIABLE: layout.encode()}

    def forward(number: int) -> None:
        # On SIGTERM srun kills its tasks at once (22.05), so the signal goes to the step's processes.
        signal_step(number, job_id=str(layout.job_id), restart_count=restart_count, runner=job.runner)

    # If this process is killed, SIGTERM makes srun end its step.
    srun = WatchedProcesses(argv, [environ], kill_after_s=0.0, forward=forward, death_signal=signal.SIGTERM)
    status = srun.run()
    num_gpus = layout.world_size if layout.uses_gpus else None
    stopped = ExitStatus(exit_code=STOPPED_BY_SIGTERM, failed_by_itself=False)
    if status.exit_code == 0:
        if end_files and not _have_ended(end_files):
            job.warn(f"srun ended, and not all processes of job {layout.job_id} did: they count as stopped")
            return stopped
        return status
    code = _read_exit_file(layout.exit_file)
    if layout.restart_count is None:
        # Not after a request to stop: in a requeue, the job's next start waits for the end of this process.
        if status.failed_by_itself:
            requeue_if_gpus_missing(num_gpus, environ=job.environ, connect=job.connect, warn=job.warn)
    elif code is None:
        # No process of this wing has failed, but srun: as it does where it is stopped before its step begins.
        expected = num_gpus if layout.restart_count < MAX_RESTARTS else 0
        if not status.failed_by_itself or was_stopped_by_slurm(
            expected, environ=job.environ, connect=job.connect, warn=job.warn
        ):
            return stopped
    return status if code is None else replace(status, exit_code=code)


def _read_exit_file(file: Path | None) -> int | None:
    """Return the exit code of the first process that failed by itself; None where none did."""
    if file is None:
        return None
    with contextlib.suppress(OSError, ValueError, PrivateFileError):
        code = int(read_private(file, in_any_folder=True))
        file.unlink()
        return code
    return None


def _have_ended(end_files: Sequence[Path]) -> bool:
    """Whether each node has made its file; where they share a folder, it may be seen some seconds later."""
    folder, names = end_files[0].parent, {file.name for file in end_files}
    deadline = time.monotonic() + _LATE_FILE_S
    while not names <= set(os.listdir(folder)) and time.monotonic() < deadline:  # noqa: PTH208
        time.sleep(0.2)
    found = all(_is_own(file) for file in end_files)
    for file in end_files:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    return found


def _is_own(file: Path) -> bool:
    with contextlib.suppress(OSError, PrivateFileError):
        read_private(file)
        return True
    return False


def srun_options(job: PreparedJob) -> list[str]:
    """Return the options that start one task on each node, with all of the job's resources there.

    Measured on 22.05 with 4 + 1 GPUs: each task sees exactly its node's GPUs and CPUs.
    """
    nodes = job.layout.nodes
    options = [
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        "--mem=0",  # all of the job's memory on the node
        "--kill-on-bad-exit=1",
        "--wait=0",  # nodes may end at different times
        "--export=ALL",
        "--input=none",
    ]
    # srun takes a repeated option's last value; pyxis refuses some that are repeated.
    defaults = {"cpu-bind": "none", "mpi": "none"}
    options += [
        f"--{name}={value}" for name, value in defaults.items() if not is_given(name, job.srun_arguments)
    ]
    is_verbose = any(word.startswith(("-v", "--verb")) for word in job.srun_arguments)
    if not is_verbose and "SLURM_DEBUG" not in job.environ:  # srun refuses both
        # Else each stop prints several lines for each wing, around the one of ours that says why.
        options.append("--quiet")
    if job.layout.uses_gpus:
        options += [f"--gpus={job.layout.world_size}", "--gpu-bind=none"]
    if not job.all_nodes:
        options.append("--nodelist=" + ",".join(name for name, _ in nodes))
    return [*options, *job.srun_arguments]


def step_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the variables that srun reads as options."""
    return {
        key: value
        for key, value in environ.items()
        if key not in _STALE and not key.startswith(_STALE_PREFIXES)
    }
