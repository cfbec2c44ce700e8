"""`pollux run`: start a job's training processes, one for each GPU, here or on all nodes of a Slurm job.

In a batch script it calls itself once on each node through srun; there, and without Slurm, it starts the
processes and stays until the last has ended. It imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pollux_slurm.agent.layout import STEP_VARIABLE, RunLayout, RunOptions, rank_environments
from pollux_slurm.agent.processes import Crew, cannot_start
from pollux_slurm.agent.rendezvous import LOOPBACK, find_free_port
from pollux_slurm.agent.slurm_job import prepare_job, run_step
from pollux_slurm.agent.token import make_private_dir
from pollux_slurm.config import Config
from pollux_slurm.errors import LaunchError, UsageError

_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")


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

    Raises `LaunchError` when the processes cannot be started (exit code 127 for a command that is not there,
    as in a shell), `UsageError` for options that make no sense.
    """
    if not command:
        raise UsageError("no command to run; example: pollux run -- python train.py")
    if options.max_gpus is not None and (options.min_gpus or 1) > options.max_gpus:
        raise UsageError(f"--min-gpus {options.min_gpus} is above --max-gpus {options.max_gpus}")
    if STEP_VARIABLE in environ:
        return _run_in_step(command, environ=environ)
    if environ.get("SLURM_JOB_ID") and "SLURM_STEP_ID" not in environ:
        if "SLURMD_NODENAME" in environ:  # not in salloc's shell, which may stand on another machine
            _require_program(command[0], environ)
        return run_step(command, prepare_job(options, environ=environ, config=config, cwd=cwd, warn=warn))
    if environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        raise UsageError(
            "pollux run was started several times by srun: call it in the batch script itself, "
            "it calls srun on its own"
        )
    return _run_here(command, options, environ=environ)


def _require_program(program: str, environ: Mapping[str, str]) -> None:
    """Say once, and not once on each node, that a command is not there."""
    if shutil.which(program, path=environ.get("PATH", os.defpath)) is None and not Path(program).exists():
        raise cannot_start(program, FileNotFoundError())


def visible_gpus(environ: Mapping[str, str]) -> int:
    """Count the GPUs that a process started now would see; 0 when nothing tells of any."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in environ:
            listed = [part.strip() for part in environ[name].split(",")]
            # CUDA ignores what stands behind the first entry that names no device.
            valid = listed.index("-1") if "-1" in listed else len(listed)
            return len([part for part in listed[:valid] if part and part != "NoDevFiles"])
    on_node = environ.get("SLURM_GPUS_ON_NODE", "")
    if on_node.isdecimal():
        return int(on_node)
    with contextlib.suppress(OSError):
        return len(list(_NVIDIA_GPUS.iterdir()))
    return 0


def _run_here(command: Sequence[str], options: RunOptions, *, environ: Mapping[str, str]) -> int:
    """Run on this machine alone: no Slurm, or a single task of somebody else's srun."""
    gpus = visible_gpus(environ)
    layout = RunLayout(
        nodes=(("localhost", options.num_processes or max(gpus, 1)),),
        master_addr=options.master_addr or LOOPBACK,
        master_port=find_free_port(os.getpid()),
        uses_gpus=gpus > 0,
    )
    extra = {}
    if options.checkpoint_dir is not None:
        make_private_dir(options.checkpoint_dir)
        extra["POLLUX_CHECKPOINT_DIR"] = str(options.checkpoint_dir)
    environments = rank_environments(layout, 0, {**environ, **extra})
    return Crew(command, environments, patience_s=options.patience_s).run().exit_code


def _run_in_step(command: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Run this node's share of the layout that the batch script's `pollux run` has made."""
    layout = RunLayout.decode(environ[STEP_VARIABLE])
    index = _node_index(layout, environ)
    name, count = layout.nodes[index]
    found = visible_gpus(environ)
    if layout.uses_gpus and found != count:
        raise LaunchError(
            f"job {layout.job_id} holds {count} GPUs on {name}, but its step sees {found} there; "
            "run: scontrol show job -d " + str(layout.job_id)
        )

    def tell(code: int) -> None:
        if layout.exit_file is not None:
            with contextlib.suppress(OSError):  # also when another node was first: its code stays
                handle = os.open(layout.exit_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(handle, "w", encoding="ascii") as file:
                    file.write(f"{code}\n")

    try:
        crew = Crew(
            command,
            rank_environments(layout, index, environ),
            patience_s=layout.patience_s,
            on_failure=tell,
        )
        return crew.run().exit_code
    except LaunchError as error:
        tell(error.exit_code)
        raise


def _node_index(layout: RunLayout, environ: Mapping[str, str]) -> int:
    """Find this node among the layout's by its number in the step, and make sure that the names agree."""
    text = environ.get("SLURM_NODEID", "")
    name = environ.get("SLURMD_NODENAME", "")
    if text.isdecimal() and int(text) < len(layout.nodes) and layout.nodes[int(text)][0] in (name, ""):
        return int(text)
    for index, (known, _) in enumerate(layout.nodes):
        if known == name:
            return index
    raise LaunchError(f"node {name or '?'} (number {text or '?'}) is not among those of job {layout.job_id}")
