"""`pollux resize`: another number of processes for a training that runs on this machine."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from pollux_slurm.cli.shared.duration_options import seconds
from pollux_slurm.cli.shared.settings_and_store import print_line
from pollux_slurm.errors import UsageError


def resize(
    num_processes: Annotated[
        int, typer.Argument(min=1, metavar="NUMBER", help="How many processes are to train.")
    ],
    leave: Annotated[
        str | None,
        typer.Option(metavar="RANKS", help="Ranks of replicas that leave, such as 0,2 (default: the last)."),
    ] = None,
    run: Annotated[
        int | None,
        typer.Option(metavar="PID", help="Which `pollux run`, where several run: its process id."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            parser=seconds(), metavar="TIME", help="Withdraw it when not done by then: seconds, or 90s, 5m."
        ),
    ] = 600.0,
) -> None:
    """Let processes join or leave a training that goes on.

    The training was started on this machine by `pollux run --in-place`, outside of Slurm. New processes
    start while the others train; training stands still only for the change itself. Until then, Ctrl-C
    withdraws it.

    Example: pollux resize 3

    To replace the first of three: pollux resize 3 --leave 0
    """
    from pollux_slurm.launch.run.local_runs import resize_local_run

    print_line(resize_local_run(num_processes, leaves=_ranks(leave), pid=run, timeout_s=timeout))


def _ranks(text: str | None) -> list[int]:
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if any(re.fullmatch("[0-9]{1,6}", part) is None for part in parts):
        raise UsageError(f"--leave {text}: write the ranks of replicas, such as 0,2")
    return [int(part) for part in parts]
