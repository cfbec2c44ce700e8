"""`pollux kinds`: which trainings the store knows, and forgetting one."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    JsonOption,
    StoreOption,
    console,
    opened_store,
    print_json,
    print_line,
    settings,
)
from pollux_slurm.errors import UsageError
from pollux_slurm.text import plural, some_of

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
    from pollux_slurm.document.forms.terminal import terminal_table
    from pollux_slurm.now.tables import kinds_data

    with opened_store(settings(config_file, store_url)) as store:
        found = store.kinds.all()
    if as_json:
        print_json([dataclasses.asdict(kind) for kind in found])
        return
    if not found:
        print_line("no job has a kind yet: pollux sbatch gives it one")
        return
    out = console()
    out.print(terminal_table(kinds_data(found), out.width, most=len(found), in_capitals=True).drawn)


@app.command()
def forget(
    kind: Annotated[str, typer.Argument(help="As pollux kinds list names it, or its beginning.")],
    user: Annotated[str | None, typer.Option(help="Only of this user's jobs.")] = None,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Forget a kind: its jobs so far predict no others. What they measured stays in the store.

    Example: pollux kinds forget 3f2a9c81d07be654
    """
    with opened_store(settings(config_file, store_url)) as store:
        known = {one.kind for one in store.kinds.all() if user in (None, one.user_name)}
        found = [kind] if kind in known else sorted(one for one in known if kind and one.startswith(kind))
        if not found:
            raise UsageError(
                f"no job is of kind {kind}{f' and of {user}' if user else ''}: pollux kinds list"
            )
        if len(found) > 1:
            raise UsageError(f"several kinds begin with {kind}: {some_of(found, 5)}")
        (kind,) = found
        num_jobs = store.kinds.forget(kind, user_name=user)
    print_line(f"{plural(num_jobs, 'job')} of kind {kind} teach{'es' * (num_jobs == 1)} no others now")
