"""`pollux resize`: another number of processes for a training that runs on this machine."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from pollux_slurm.cli.shared.duration_options import seconds

_POLL_INTERVAL_S = 0.05


def resize(
    num_processes: Annotated[
        int, typer.Argument(min=1, metavar="NUMBER", help="How many processes are to train.")
    ],
    leave: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="RANK", help="A replica that leaves (default: the last ones)."),
    ] = None,
    run: Annotated[
        int | None,
        typer.Option(metavar="PID", help="Which `pollux run`, where several run: its process id."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(parser=seconds(), metavar="TIME", help="How long to wait for it: seconds, or 90s, 5m."),
    ] = 600.0,
) -> None:
    """Let processes join or leave a training that goes on.

    The training was started on this machine by `pollux run --in-place`, outside of Slurm. New processes
    start while the others train; only the change itself stands still.

    Example: pollux resize 3
    """
    from pollux_slurm.agent.launch.local_runs import find_local_run
    from pollux_slurm.errors import LaunchError

    folder = find_local_run(run)
    request = folder.ask(num_processes, tuple(leave or ()))
    deadline = time.monotonic() + timeout
    while (answer := folder.answered(request)) is None:
        if not folder.folder.exists():
            raise LaunchError("the run has ended")
        if time.monotonic() >= deadline:
            raise LaunchError(f"no answer within {timeout:g} s: the run may still do it")
        time.sleep(_POLL_INTERVAL_S)
    is_done, text = answer
    if not is_done:
        raise LaunchError(f"the processes go on as they were: {text}")
    typer.echo(text)
