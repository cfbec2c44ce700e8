"""`pollux run` in a batch script: read the job's allocation, and start one launcher on each of its nodes.

The allocation is read from Slurm, not from the environment. After a requeue with another allocation,
SLURM_NTASKS, SLURM_GPUS, SLURM_TASKS_PER_NODE and the like still have the submitted values (22.05), and no
variable has the number of GPUs of the other nodes. On a single node, SLURM_GPUS_ON_NODE is correct.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pollux_slurm.agent.node.containers import (
    is_given,
    node_command,
    required_paths,
    srun_starts_container,
    wrapped_command,
)
from pollux_slurm.agent.node.layout import JOB_VARIABLE, STEP_VARIABLE, RunLayout, RunOptions
from pollux_slurm.agent.node.rendezvous import LOOPBACK, new_secret, node_address, reserve_port
from pollux_slurm.agent.node.torchrun import starts_torchrun
from pollux_slurm.agent.node.watched_processes import WatchedProcesses
from pollux_slurm.agent.step.missing_gpus import requeue_if_gpus_missing
from pollux_slurm.agent.step.step_numbers import skip_step_numbers
from pollux_slurm.agent.step.step_signals import signal_step
from pollux_slurm.agent.submit.plain_sbatch import make_adaptive
from pollux_slurm.agent.submit.token import CHECKPOINTS_FOLDER, make_private_dir
from pollux_slurm.config import Config
from pollux_slurm.errors import LaunchError, PolluxError, SlurmError, SlurmUnavailable
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.connection import connect, make_runner

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
_READ_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)


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


def prepare_job(
    command: Sequence[str],
    options: RunOptions,
    *,
    environ: Mapping[str, str],
    config: Config,
    cwd: Path,
    warn: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> PreparedJob:
    """Determine this job's allocation, checkpoint directory and token, for the processes of `command`.

    A job of plain sbatch becomes adaptive here, if a store is configured; where that fails, `warn` gets the
    reason and the job trains at its fixed size. Raises `SlurmUnavailable` without srun, `LaunchError` when
    the allocation on several nodes cannot be read.
    """
    job_id = environ["SLURM_JOB_ID"]
    runner = make_runner(config.slurm, environ)
    runner.find("srun")
    job_environ = dict(environ) | {JOB_VARIABLE: job_id}

    slurm = partial(connect, config.slurm, environ)
    allocated = allocated_gpus(environ, connect=slurm, runner=runner, warn=warn, pause=pause)
    uses_gpus = any(gpus > 0 for _, gpus in allocated)
    used = [(name, gpus) for name, gpus in allocated if gpus > 0 or not uses_gpus]
    checkpoint_dir = _checkpoint_dir(job_id, options, job_environ, cwd, warn)
    if checkpoint_dir is not None:
        job_environ["POLLUX_CHECKPOINT_DIR"] = str(checkpoint_dir)
    _ensure_token(job_id, options, job_environ, checkpoint_dir, config, runner, warn)

    restart = environ.get("SLURM_RESTART_COUNT") or "0"
    port = reserve_port()  # The batch script runs on the job's first node, as rank 0 does.
    layout = RunLayout(
        nodes=tuple((name, options.num_processes or max(gpus, 1)) for name, gpus in used),
        master_addr=options.master_addr or (LOOPBACK if len(used) == 1 else node_address(used[0][0], runner)),
        master_port=port.getsockname()[1],
        secret=new_secret(),
        uses_gpus=uses_gpus,
        job_id=job_id,
        exit_file=None if checkpoint_dir is None else checkpoint_dir / f"pollux-{job_id}-{restart}.exit",
        kill_after_s=options.kill_after_s,
        is_wrapped=bool(options.wrapper),
        starts_torchrun=starts_torchrun(command),
    )
    if options.num_processes is not None:
        layout = replace(layout, uses_gpus=False)
    return PreparedJob(
        layout=layout,
        environ=job_environ,
        runner=runner,
        connect=slurm,
        warn=warn,
        all_nodes=len(used) == len(allocated),
        port=port,
        wrapper=options.wrapper,
        srun_arguments=options.srun_arguments,
        required_paths=_required_paths(options, job_environ, config),
    )


def run_step(command: Sequence[str], job: PreparedJob) -> int:
    """Run the layout as one step of the job, and return its exit code.

    This is the code of the first process that failed by itself, which its node writes to the exit file.
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
    node = node_command(python=sys.executable, in_container=job.is_in_container)
    argv = [job.runner.find("srun"), *srun_options(job), *node, *command]
    restart_count = int(job.environ.get("SLURM_RESTART_COUNT") or 0)
    environ = step_environment(job.environ)
    skip_step_numbers(restart_count, runner=job.runner, environ=environ)
    environ |= {STEP_VARIABLE: layout.encode()}

    def forward(number: int) -> None:
        # On SIGTERM srun kills its tasks at once (22.05), so the signal goes to the step's processes.
        signal_step(number, job_id=str(layout.job_id), restart_count=restart_count, runner=job.runner)

    # If this process is killed, SIGTERM makes srun end its step.
    srun = WatchedProcesses(argv, [environ], kill_after_s=0.0, forward=forward, death_signal=signal.SIGTERM)
    status = srun.run()
    code = status.exit_code
    # Not after a request to stop: in a requeue, the job's next start waits for the end of this process.
    if status.failed_by_itself:
        num_gpus = layout.world_size if layout.uses_gpus else None
        requeue_if_gpus_missing(num_gpus, environ=job.environ, connect=job.connect, warn=job.warn)
    if layout.exit_file is None or code == 0:
        return code
    with contextlib.suppress(OSError, ValueError):
        code = int(layout.exit_file.read_text(encoding="ascii"))
        layout.exit_file.unlink()
    return code


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


def allocated_gpus(
    environ: Mapping[str, str],
    *,
    connect: Callable[[], SlurmClient],
    runner: CommandRunner,
    warn: Callable[[str], None],
    pause: Callable[[float], None],
) -> list[tuple[str, int]]:
    """Return (node, number of GPUs) in the order in which srun numbers the nodes.

    A job on several nodes that requested GPUs and owns none is requeued. Raises `LaunchError` when the
    allocation cannot be read.
    """
    job_id, own_node = environ["SLURM_JOB_ID"], environ.get("SLURMD_NODENAME")
    if own_node and environ.get("SLURM_JOB_NUM_NODES", "1") == "1":
        on_node = environ.get("SLURM_GPUS_ON_NODE", "")
        return [(own_node, int(on_node) if on_node.isdecimal() else 0)]
    names = _host_names(environ.get("SLURM_JOB_NODELIST", ""), runner)
    problem: str = "Slurm does not know it"
    for wait_s in (*_READ_PAUSES_S, None):
        try:
            job = connect().read_job(job_id)
        except SlurmUnavailable as error:
            problem = str(error)
        except SlurmError as error:
            raise LaunchError(f"the allocation of job {job_id} cannot be read: {error}") from None
        else:
            gpus = job.allocation.as_dict() if job is not None else {}
            if job is not None and set(gpus) <= set(names) and (gpus or job.requested_gpus == 0):
                return [(name, gpus.get(name, 0)) for name in names]
            problem = f"Slurm shows {gpus or 'no GPUs'} for the nodes {names}"
        if wait_s is not None:
            pause(wait_s)
    requeue_if_gpus_missing(None, environ=environ, connect=connect, warn=warn, pause=pause)
    raise LaunchError(f"the allocation of job {job_id} cannot be read: {problem}")


def _required_paths(options: RunOptions, environ: Mapping[str, str], config: Config) -> tuple[Path, ...]:
    """Return what the processes must see in a container; nothing where there is none."""
    if not options.wrapper and not srun_starts_container(options.srun_arguments, environ):
        return ()
    if config.store.url is None:
        return required_paths(environ, store_file=None)
    from pollux_slurm.store.access.url import parse_store_url  # SQLAlchemy is slow to import

    return required_paths(environ, store_file=parse_store_url(config.store.url).path)


def _host_names(host_list: str, runner: CommandRunner) -> list[str]:
    """Expand `n[0-1],m3`; scontrol does so without asking slurmctld."""
    answer = runner.run("scontrol", "show", "hostnames", host_list)
    names = answer.stdout.split()
    if answer.exit_code != 0 or not names:
        raise LaunchError(f"scontrol cannot expand SLURM_JOB_NODELIST={host_list!r}: {answer.error_text}")
    return names


def _checkpoint_dir(
    job_id: str, options: RunOptions, environ: Mapping[str, str], cwd: Path, warn: Callable[[str], None]
) -> Path | None:
    """Return the directory of the option, of the environment, or the default; create it if missing."""
    named = options.checkpoint_dir or environ.get("POLLUX_CHECKPOINT_DIR")
    folder = (
        Path(named)
        if named
        else Path(environ.get("SLURM_SUBMIT_DIR") or cwd) / CHECKPOINTS_FOLDER / f"job-{job_id}"
    )
    try:
        make_private_dir(cwd / folder)
    except LaunchError as error:
        if named:
            raise
        warn(f"training runs without checkpoints: {error}")
        return None
    return cwd / folder


def _ensure_token(
    job_id: str,
    options: RunOptions,
    environ: dict[str, str],
    checkpoint_dir: Path | None,
    config: Config,
    runner: CommandRunner,
    warn: Callable[[str], None],
) -> None:
    """Add POLLUX_TOKEN_FILE to `environ`: make a job of plain sbatch adaptive where that is possible."""
    if config.store.url is None:
        warn(
            f"job {job_id} trains without a store: it reports nothing and is never moved; set "
            "POLLUX_STORE_URL, or [store] url in /etc/pollux/pollux.toml, on the job's nodes"
        )
    if environ.get("POLLUX_TOKEN_FILE"):
        if options.min_gpus is not None or options.max_gpus is not None or options.allow_unconfirmed:
            warn("the bounds given to pollux sbatch apply; those given to pollux run are for plain sbatch")
        return
    if config.store.url is None or checkpoint_dir is None:
        return
    try:
        adoption = make_adaptive(
            job_id,
            token_file=checkpoint_dir / f"pollux-job-{job_id}.token",
            min_gpus=options.min_gpus or 1,
            max_gpus=options.max_gpus,
            allow_unconfirmed=options.allow_unconfirmed,
            client=connect(config.slurm, environ),
            runner=runner,
        )
    except PolluxError as error:
        warn(f"job {job_id} trains at its fixed size: {error}")
        return
    if adoption.token_file is None:
        warn(f"job {job_id} trains at its fixed size: {adoption.problem}")
        return
    environ["POLLUX_TOKEN_FILE"] = str(adoption.token_file)
