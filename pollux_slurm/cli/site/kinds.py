"""`pollux kinds`: which trainings the store knows, and forgetting one."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    JsonOption,
    StoreOption,
    opened_store,
    print_json,
    print_line,
    settings,
)
from pollux_slurm.errors import UsageError

app = typer.Typer(
    name="kinds",
    add_completion=False,
    help="List and forget kinds of jobs: trainings whose jobs tell each other what they measured.",
    no_args_is_help=True,
    epilog="Examples: pollux kinds list · pollux kinds forget 3f2a9c81d07be654 --user ada",
)


@app.command("list")
def list_(
    as_json: JsonOption = False, config_file: ConfigOption = None, store_url: StoreOption = None
) -> None:
    """List the kinds of jobs, those of the newest jobs first.

    Example: pollux kinds list
    """
    from rich.console import Console
    from rich.table import Table

    from pollux_slurm.text import one_line

    with opened_store(settings(config_file, store_url)) as store:
        found = store.kinds.all()
    if as_json:
        print_json([dataclasses.asdict(kind) for kind in found])
        return
    if not found:
        print_line("no job has a kind yet: pollux sbatch gives it one")
        return
    table = Table(box=None, header_style="bold")
    for title in ("KIND", "USER", "NEWEST JOB", "JOBS", "COMPLETED", "MEASURED ON"):
        table.add_column(title, justify="right" if title in ("JOBS", "COMPLETED") else "left")
    for kind in found:
        gpus = kind.max_gpus_seen
        measured = "not yet" if not gpus else f"up to {gpus} GPU{'s' * (gpus > 1)}"
        newest = f"{kind.newest_job} ({one_line(kind.newest_name)})"
        numbers = (str(kind.num_jobs), str(kind.num_completed))
        table.add_row(kind.kind, one_line(kind.user_name), newest, *numbers, measured)
    Console().print(table)


@app.command()
def forget(
    kind: Annotated[str, typer.Argument(help="As pollux kinds list names it.")],
    user: Annotated[str | None, typer.Option(help="Only of this user's jobs.")] = None,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Forget a kind: its jobs so far predict no others. What they measured stays in the store.

    Example: pollux kinds forget 3f2a9c81d07be654
    """
    with opened_store(settings(config_file, store_url)) as store:
        num_jobs = store.kinds.forget(kind, user_name=user)
    if not num_jobs:
        raise UsageError(f"no job is of kind {kind}{f' and of {user}' if user else ''}: pollux kinds list")
    print_line(
        f"{num_jobs} job{'s' * (num_jobs > 1)} of kind {kind} teach{'es' * (num_jobs == 1)} no others now"
    )
