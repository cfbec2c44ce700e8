"""`pollux run` in a batch script: what it learns of its job, and prepares, before it starts a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pollux_slurm.agent.environment.layout import JOB_VARIABLE, RunLayout
from pollux_slurm.config import Config
from pollux_slurm.errors import LaunchError, PolluxError
from pollux_slurm.launch.node.containers import required_paths, srun_starts_container
from pollux_slurm.launch.node.rendezvous import LOOPBACK, new_secret, node_address, reserve_port
from pollux_slurm.launch.node.torchrun import starts_torchrun
from pollux_slurm.launch.run_options import RunOptions
from pollux_slurm.launch.step.allocation import allocated_gpus
from pollux_slurm.launch.step.run_step import PreparedJob
from pollux_slurm.launch.submit.checkpoint_folder import checkpoints_folder, make_private_dir
from pollux_slurm.launch.submit.plain_sbatch import make_adaptive
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.connection import connect, make_runner


def prepare_job(
    command: Sequence[str],
    options: RunOptions,
    *,
    environ: Mapping[str, str],
    config: Config,
    cwd: Path,
    warn: Callable[[str], None],
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
    allocated = allocated_gpus(environ, connect=slurm, runner=runner, warn=warn, pause=time.sleep)
    uses_gpus = any(gpus > 0 for _, gpus in allocated)
    used = [(name, gpus) for name, gpus in allocated if gpus > 0 or not uses_gpus]
    checkpoint_dir = _checkpoint_dir(job_id, options, job_environ, config, cwd, warn)
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


def _required_paths(options: RunOptions, environ: Mapping[str, str], config: Config) -> tuple[Path, ...]:
    """Return what the processes must see in a container; nothing where there is none."""
    if not options.wrapper and not srun_starts_container(options.srun_arguments, environ):
        return ()
    if config.store.url is None:
        return required_paths(environ, store_file=None)
    from pollux_slurm.store.access.url import parse_store_url  # SQLAlchemy is slow to import

    return required_paths(environ, store_file=parse_store_url(config.store.url).path)


def _checkpoint_dir(
    job_id: str,
    options: RunOptions,
    environ: Mapping[str, str],
    config: Config,
    cwd: Path,
    warn: Callable[[str], None],
) -> Path | None:
    """Return the directory of the option, of the environment, or the default; create it if missing."""
    named = options.checkpoint_dir or environ.get("POLLUX_CHECKPOINT_DIR")
    submitted_in = Path(environ.get("SLURM_SUBMIT_DIR") or cwd)
    folder = Path(named) if named else checkpoints_folder(config.checkpoints, submitted_in) / f"job-{job_id}"
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
        given = (options.min_gpus, options.max_gpus, options.min_run_s, options.finish_by)
        if options.allow_unconfirmed or any(one is not None for one in given):
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
            min_run_s=options.min_run_s,
            kind=options.kind,
            finish_by=options.finish_by,
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
