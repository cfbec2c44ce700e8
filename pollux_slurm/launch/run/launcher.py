"""`pollux run`: start a job's training processes, one for each GPU, here or on all nodes of a Slurm job.

A batch script calls it once. It then calls srun, which runs a small program on each node (`NODE_PROGRAM`).
That program starts the node's processes and waits until the last has ended. Without Slurm, the launcher does
so itself. It does not import torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pollux_slurm.agent.checkpoints.lineage import num_runs
from pollux_slurm.agent.checkpoints.out_of_memory import rerun_with_smaller_batches
from pollux_slurm.agent.environment.layout import RunLayout
from pollux_slurm.agent.exit_codes import STOPPED_EXIT_CODES
from pollux_slurm.agent.membership.resize_requests import ResizeRequests
from pollux_slurm.config import Config
from pollux_slurm.errors import UsageError
from pollux_slurm.launch.node.containers import required_paths, wrapped_command
from pollux_slurm.launch.node.node_program import (
    note_failed_process,
    process_environments,
    processes_exit_code,
    visible_gpus,
)
from pollux_slurm.launch.node.rendezvous import LOOPBACK, new_secret, rendezvous_file, reserve_port
from pollux_slurm.launch.node.torchrun import starts_torchrun
from pollux_slurm.launch.node.watched_processes import WatchedProcesses, start_error
from pollux_slurm.launch.run.crash_report import Retry, say_what_failed
from pollux_slurm.launch.run.inherited_variables import (
    with_own_restart_count,
    without_other_jobs_variables,
    without_step_of_submitter,
)
from pollux_slurm.launch.run.resizing import Resizing
from pollux_slurm.launch.run_options import RunOptions
from pollux_slurm.launch.step.controller import wait_for_controller
from pollux_slurm.launch.submit.checkpoint_folder import make_private_dir
from pollux_slurm.launch.submit.other_launchers import refusal_within_run
from pollux_slurm.launch.submit.wing_request import ANCHOR_VARIABLE
from pollux_slurm.slurm.connection import make_runner

# How often a run on this machine looks whether processes are to join or leave.
_RESIZE_INTERVAL_S = 0.05
_FIRST_SPECIAL_STEP = 0xFFFF_FFF0  # the batch script's step is 0xFFFFFFFB, salloc's 0xFFFFFFFA


def launch(
    command: Sequence[str],
    options: RunOptions,
    *,
    environ: Mapping[str, str],
    config: Config,
    cwd: Path,
    warn: Callable[[str], None],
) -> int:
    """Run `command` to its end and return the exit code of the first process that failed, else 0.

    Raises `LaunchError` when the processes cannot be started (exit code 127 for a missing command, as in a
    shell), `UsageError` for options that contradict each other.
    """
    _refuse_wrong_usage(command, options)
    environ = without_step_of_submitter(without_other_jobs_variables(environ))
    if environ.get("SLURM_JOB_ID") and not _is_in_step(environ):
        return _run_in_job(command, options, environ=environ, config=config, cwd=cwd, warn=warn)
    if environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        raise UsageError(
            "pollux run was started several times by srun: call it in the batch script itself, "
            "it calls srun on its own"
        )
    if options.in_place and starts_torchrun(command):
        raise UsageError(
            "--in-place with torchrun, which ends all processes before it starts others: write "
            "`pollux run --in-place -- python train.py`"
        )
    if options.srun_arguments:
        raise UsageError(
            "--srun-args is for batch scripts: no srun is called here; --wrap-with works anywhere"
        )
    return _run_here(command, options, environ=environ, warn=warn)


def _refuse_wrong_usage(command: Sequence[str], options: RunOptions) -> None:
    if not command:
        raise UsageError("no command to run; example: pollux run -- python train.py")
    if not command[0].strip():
        raise UsageError(
            "the command's name is empty (an unset shell variable?); example: pollux run -- python train.py"
        )
    if (refusal := refusal_within_run(command)) is not None:
        raise UsageError(refusal)
    if options.max_gpus is not None and (options.min_gpus or 1) > options.max_gpus:
        raise UsageError(f"--min-gpus {options.min_gpus} is above --max-gpus {options.max_gpus}")


def _run_in_job(
    command: Sequence[str],
    options: RunOptions,
    *,
    environ: Mapping[str, str],
    config: Config,
    cwd: Path,
    warn: Callable[[str], None],
) -> int:
    """Run on all nodes of the Slurm job, or, in an anchor, in wings."""
    runner = make_runner(config.slurm, environ)
    environ = with_own_restart_count(environ, runner, partial(wait_for_controller, runner, warn))
    if "SLURMD_NODENAME" in environ:  # not in salloc's shell, which may be on another machine
        _require_program((options.wrapper or command)[0], environ)
    if environ.get(ANCHOR_VARIABLE):
        from pollux_slurm.launch.anchor.anchor_job import run_anchor

        return _run_and_check(
            partial(run_anchor, command, options, environ=environ, config=config, cwd=cwd, warn=warn),
            environ.get("POLLUX_CHECKPOINT_DIR"),
            Retry(command=command, num_processes=2, job_id=environ["SLURM_JOB_ID"]),
            warn=warn,
        )
    from pollux_slurm.launch.run.slurm_job import prepare_job
    from pollux_slurm.launch.step.run_step import run_step

    if options.in_place:
        warn("--in-place has no effect here: submit the job with pollux sbatch --in-place")
    job = prepare_job(command, options, environ=environ, config=config, cwd=cwd, warn=warn)
    return _run_and_check(
        lambda: run_step(command, job).exit_code,
        job.environ.get("POLLUX_CHECKPOINT_DIR"),
        Retry(command=command, num_processes=job.layout.world_size, job_id=environ["SLURM_JOB_ID"]),
        warn=warn,
    )


def _run_and_check(
    run: Callable[[], int], checkpoints: str | Path | None, retry: Retry, *, warn: Callable[[str], None]
) -> int:
    """Run the processes, again after a lack of memory; warn if none of them used the library."""
    directory = Path(checkpoints) if checkpoints else None
    before = 0 if directory is None else num_runs(directory)
    code = rerun_with_smaller_batches(run, directory, warn=warn)
    if directory is None:
        return code
    if num_runs(directory) != before:
        return say_what_failed(code, directory, retry, warn=warn)
    # A process that failed may not have reached the call of the library.
    if code == 0:
        warn(
            "no process of this run has called pollux_slurm.torch.init_process_group: it ran like any other "
            "program, nothing was measured or reported, and no checkpoint was written. Without its lines of "
            "docs/frameworks.md, Lightning, Trainer or Accelerate may have trained once in each process"
        )
    elif code in STOPPED_EXIT_CODES:
        warn(
            "the processes were stopped before one of them called pollux_slurm.torch.init_process_group: no "
            "checkpoint was written"
        )
    return code


def _is_in_step(environ: Mapping[str, str]) -> bool:
    """Tell whether srun has started this process; the batch step and salloc's do not count."""
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP


def _require_program(program: str, environ: Mapping[str, str]) -> None:
    """Raise for a missing command here, once, and not on each node."""
    if shutil.which(program, path=environ.get("PATH", os.defpath)) is None and not Path(program).exists():
        raise start_error(program, FileNotFoundError())


def _run_here(
    command: Sequence[str],
    options: RunOptions,
    *,
    environ: Mapping[str, str],
    warn: Callable[[str], None],
) -> int:
    """Run on this machine alone: without Slurm, or as the single task of the user's own srun."""
    gpus = visible_gpus(environ)
    port = reserve_port()
    layout = RunLayout(
        nodes=(("localhost", options.num_processes or max(gpus, 1)),),
        master_addr=options.master_addr or LOOPBACK,
        master_port=port.getsockname()[1],
        secret=new_secret(),
        uses_gpus=gpus > 0,
        starts_torchrun=starts_torchrun(command),
    )
    extra = {}
    if options.checkpoint_dir is not None:
        make_private_dir(options.checkpoint_dir)
        extra["POLLUX_CHECKPOINT_DIR"] = str(options.checkpoint_dir)
    directory = options.checkpoint_dir or environ.get("POLLUX_CHECKPOINT_DIR")
    if options.wrapper:
        seen = {**environ, **extra}
        paths = required_paths(seen, store_file=None)
        command = wrapped_command(command, options.wrapper, paths, environ=seen)

    def run() -> int:
        nonlocal layout  # started again for a lack of memory, it has the size to which it was brought
        code, layout = _run_layout(layout, command, options, {**environ, **extra}, num_gpus=gpus, warn=warn)
        return code

    with port:
        retry = Retry(command=command, num_processes=layout.world_size, job_id=None)
        return _run_and_check(run, directory, retry, warn=warn)


def _run_layout(
    layout: RunLayout,
    command: Sequence[str],
    options: RunOptions,
    environ: Mapping[str, str],
    *,
    num_gpus: int,
    warn: Callable[[str], None],
) -> tuple[int, RunLayout]:
    """Run the processes of a layout to their end; return the exit code, and the layout that they had then."""
    with contextlib.ExitStack() as stack:
        file = None if layout.starts_torchrun else stack.enter_context(rendezvous_file())
        environments = process_environments(layout, 0, environ, rendezvous_file=file)
        resizing: Resizing | None = None
        if options.in_place and file is not None:
            stack.enter_context(ResizeRequests(file.parent).announced(command))
            resizing = Resizing(
                *(file.parent, layout, environ),
                num_gpus=num_gpus,
                kill_after_s=options.kill_after_s,
                warn=warn,
            )
            environments = resizing.first_environments(environments)
        processes = WatchedProcesses(
            command,
            environments,
            kill_after_s=options.kill_after_s,
            on_failure=lambda code, rank: note_failed_process(code, rank, host="", environ=environ),
            is_wrapped=bool(options.wrapper),
            resizing=resizing,
            max_wait_s=5.0 if resizing is None else _RESIZE_INTERVAL_S,
        )
        status = processes.run()
        if resizing is not None:
            layout = replace(layout, nodes=((layout.nodes[0][0], resizing.num_processes),))
        return processes_exit_code(layout, status), layout
