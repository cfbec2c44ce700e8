"""`pollux change`: another minimum, maximum, shortest run or moment for a job that waits or runs."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from pollux_slurm.cli.shared import clock
from pollux_slurm.cli.shared.completion import complete_active_jobs
from pollux_slurm.cli.shared.settings_and_store import ConfigOption, print_line, settings
from pollux_slurm.errors import UsageError


def change(
    job: Annotated[str, typer.Argument(help="The Slurm job id.", autocompletion=complete_active_jobs)],
    min_gpus: Annotated[str | None, typer.Option(metavar="N", help="Never fewer GPUs.")] = None,
    max_gpus: Annotated[
        str | None, typer.Option(metavar="N", help="Never more GPUs; none: no limit.")
    ] = None,
    min_run: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time after a start without growth or other nodes: 90s, 5m, 2h; always; 0.",
        ),
    ] = None,
    finish_by: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Ask to be finished by then: 'Mon 09:00', 8h; none: take it back."),
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Print the new Comment, and change nothing.")] = False,
    config_file: ConfigOption = None,
) -> None:
    """Change what a job allows, without a restart: the daemon reads it in its next round.

    A running job that has more GPUs than its new maximum keeps them until it is moved.

    Example: pollux change 1234 --max-gpus 16
    """
    from pollux_slurm.durations import parse_finish_by, parse_min_run
    from pollux_slurm.launch.submit.asked_job import gpu_count
    from pollux_slurm.launch.submit.changed_terms import allowed_text, changed_terms
    from pollux_slurm.slurm.connection import connect

    changes: dict[str, Any] = {}
    if min_gpus is not None:
        changes["min_gpus"] = gpu_count(min_gpus, "--min-gpus")
    if max_gpus is not None:
        changes["max_gpus"] = None if max_gpus == "none" else gpu_count(max_gpus, "--max-gpus")
    if min_run is not None:
        changes["min_run_s"] = parse_min_run(min_run)
    if finish_by is not None:
        now = clock.now()
        changes["finish_by"] = None if finish_by == "none" else parse_finish_by(finish_by, now=now)
    if not changes:
        raise UsageError("nothing to change: give --min-gpus, --max-gpus, --min-run or --finish-by")
    client = connect(settings(config_file, None).slurm, os.environ)
    terms, comment = changed_terms(client, job, **changes)
    if dry_run:
        print_line(comment)
        return
    client.set_comment(job, comment)
    print_line(f"job {job}: {allowed_text(terms)}, from the daemon's next round on")
