"""`pollux run`: the launcher of training processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pollux_slurm.cli.shared import clock
from pollux_slurm.cli.shared.duration_options import seconds
from pollux_slurm.cli.shared.settings_and_store import print_note


def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND...", help="What each process runs.")
    ] = None,
    nproc_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="Processes on each node (default: one for each GPU, or one)."),
    ] = None,
    checkpoint_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where checkpoints go; all nodes must see it.")
    ] = None,
    min_gpus: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Plain sbatch only: never fewer GPUs.")
    ] = None,
    max_gpus: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Plain sbatch only: never more GPUs.")
    ] = None,
    allow_unconfirmed: Annotated[
        bool,
        typer.Option(help="Plain sbatch only: the daemon may requeue it without a confirmed checkpoint."),
    ] = False,
    min_run: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Plain sbatch only: time after a start without growth or other nodes: 5m, 2h, always.",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Plain sbatch only: the job's kind (default: by its command); '' for none."
        ),
    ] = None,
    finish_by: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Plain sbatch only: ask to be finished by then: 'Mon 09:00', 8h."),
    ] = None,
    master_addr: Annotated[
        str | None, typer.Option(metavar="HOST", help="Address of the first node for the other nodes.")
    ] = None,
    kill_after: Annotated[
        float,
        typer.Option(
            parser=seconds(),
            metavar="TIME",
            help="When a process fails, time from SIGTERM to SIGKILL for the others: seconds, or 90s, 5m.",
        ),
    ] = 15.0,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place", help="Processes may join and leave while the others train: see `pollux resize`."
        ),
    ] = False,
    wrap_with: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS", help='Put before each process\'s command: "apptainer exec --nv image.sif".'
        ),
    ] = None,
    srun_args: Annotated[
        str | None,
        typer.Option(metavar="WORDS", help='Further options of srun: "--container-image=image.sqsh".'),
    ] = None,
) -> None:
    """Run training processes, one on each GPU: on all nodes of a Slurm job, or on this machine.

    Call it once in a batch script: it runs on all nodes of the job, through srun. Without Slurm it runs on
    this machine only.

    Example: pollux run -- python train.py --lr 0.1

    In containers: pollux run --wrap-with "apptainer exec --nv image.sif" -- python train.py
    """
    from pollux_slurm.config import load_config
    from pollux_slurm.durations import parse_finish_by, parse_min_run
    from pollux_slurm.launch.kind import chosen_kind
    from pollux_slurm.launch.node.containers import split_words, srun_arguments
    from pollux_slurm.launch.run.launcher import launch
    from pollux_slurm.launch.run_options import RunOptions
    from pollux_slurm.launch.submit.submission_plan import absolute

    environ, cwd = dict(os.environ), Path.cwd()
    options = RunOptions(
        num_processes=nproc_per_node,
        checkpoint_dir=absolute(checkpoint_dir, cwd=cwd),
        min_gpus=min_gpus,
        max_gpus=max_gpus,
        allow_unconfirmed=allow_unconfirmed,
        min_run_s=None if min_run is None else parse_min_run(min_run),
        kind=chosen_kind(kind, "", command or (), folder=cwd),
        # A later run may begin after the moment.
        finish_by=None
        if finish_by is None
        else parse_finish_by(finish_by, now=clock.now(), may_be_past=True),
        master_addr=master_addr,
        kill_after_s=kill_after,
        in_place=in_place,
        wrapper=() if wrap_with is None else split_words(wrap_with, "--wrap-with"),
        srun_arguments=() if srun_args is None else srun_arguments(srun_args),
    )
    code = launch(
        command or [],
        options,
        environ=environ,
        config=load_config(environ),
        cwd=cwd,
        warn=lambda message: print_note(f"pollux: {message}"),
    )
    raise typer.Exit(code)
