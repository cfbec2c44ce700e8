"""`pollux db`: create, upgrade and check the store's schema; delete old details; manage access."""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
from typing import Annotated

import typer

from pollux_slurm.cli.shared import clock
from pollux_slurm.cli.shared.completion import choices
from pollux_slurm.cli.shared.progress_bar import ProgressBar
from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    JsonOption,
    StoreOption,
    print_json,
    print_line,
    print_note,
    print_text,
    settings,
)
from pollux_slurm.errors import StoreError

app = typer.Typer(
    name="db",
    add_completion=False,
    help="Create, upgrade, check and prune the store.",
    no_args_is_help=True,
    epilog="Examples: pollux db init · pollux db upgrade · pollux db prune --older-than 90d",
)


@app.command()
def init(config_file: ConfigOption = None, store_url: StoreOption = None) -> None:
    """Create the store's tables; does nothing if they exist.

    Example: pollux db init --store sqlite:////var/lib/pollux/pollux.db
    """
    from pollux_slurm.store.maintenance.administration import init_store

    outcome = init_store(settings(config_file, store_url).require_store_url())
    made = "created the tables in" if outcome.changed else "the tables exist already in"
    print_line(f"{made} {outcome.url} (schema {outcome.version})")
    _print_notes(outcome.notes)


@app.command()
def upgrade(config_file: ConfigOption = None, store_url: StoreOption = None) -> None:
    """Upgrade the store's tables to this release's schema, keeping the data. Stop the daemon first.

    Example: pollux db upgrade
    """
    from pollux_slurm.store.maintenance.administration import upgrade_store

    outcome = upgrade_store(settings(config_file, store_url).require_store_url())
    done = f"upgraded from {outcome.before} to" if outcome.changed else "is already at"
    print_line(f"{outcome.url} {done} schema {outcome.version}")
    _print_notes(outcome.notes)


@app.command()
def downgrade(
    schema: Annotated[str, typer.Argument(metavar="SCHEMA", help="The earlier release's, such as 0105.")],
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Go back to an earlier release's schema, before that release is installed. Stop the daemon first.

    What only later releases record is deleted. The earlier release then makes its views: pollux db upgrade.

    Example: pollux db downgrade 0105
    """
    from pollux_slurm.store.maintenance.administration import downgrade_store

    outcome = downgrade_store(settings(config_file, store_url).require_store_url(), schema)
    if not outcome.changed:
        print_line(f"{outcome.url} is already at schema {outcome.version}")
        return
    print_line(f"{outcome.url} went from schema {outcome.before} to {outcome.version}")
    print_note("next: install the release of that schema, then: pollux db upgrade")


@app.command()
def check(config_file: ConfigOption = None, store_url: StoreOption = None) -> None:
    """Check that the store can be read, has this release's schema, and is undamaged.

    Example: pollux db check
    """
    from pollux_slurm.store.maintenance.administration import check_store

    outcome = check_store(settings(config_file, store_url).require_store_url())
    if outcome.problems:
        raise StoreError(f"{outcome.url}: {'; '.join(outcome.problems)}")
    print_line(f"{outcome.url} is good (schema {outcome.version})")


@app.command()
def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", help="Age from which details are deleted: 90s, 12h, 90d, 2w.")
    ],
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete details of finished jobs; sums stay, so that reports do not change. The daemon may run.

    Example: pollux db prune --older-than 90d --dry-run
    """

    from pollux_slurm.cli.shared.duration_options import parse_span
    from pollux_slurm.store.maintenance.prune import prune_store

    span = parse_span(older_than)
    prune_now = functools.partial(
        prune_store,
        settings(config_file, store_url).require_store_url(),
        older_than=span,
        at=clock.now(),
    )
    if dry_run:
        outcome = prune_now(dry_run=True)
    else:
        # Counted first for the bar alone.
        total = sum(rows for _, rows in prune_now(dry_run=True).rows) if sys.stderr.isatty() else 0
        deleted = 0

        def count(rows: int) -> None:
            nonlocal deleted
            deleted += rows
            progress.update(deleted)

        try:
            with ProgressBar(total, f"{total} rows") as progress:
                outcome = prune_now(on_deleted=count)
        except KeyboardInterrupt:
            text = f"interrupted: {deleted} rows are deleted; the same command continues"
            print_note(f"pollux: {text}")
            raise typer.Exit(130) from None
    if as_json:
        print_json({**dataclasses.asdict(outcome), "rows": dict(outcome.rows)})
        return
    done = "would prune" if outcome.dry_run else "pruned"
    counted = ", ".join(f"{rows} {name}" for name, rows in outcome.rows if rows) or "nothing"
    print_line(f"{outcome.url}: {done} what is older than {outcome.before:%Y-%m-%d %H:%M} UTC: {counted}")


@app.command()
def claim(config_file: ConfigOption = None, store_url: StoreOption = None) -> None:
    """Let this host open an SQLite store, after the file was moved or the host renamed.

    Example: pollux db claim --store sqlite:////var/lib/pollux/pollux.db
    """
    from pollux_slurm.store.maintenance.administration import claim_store

    url = claim_store(settings(config_file, store_url).require_store_url())
    print_line(f"{url} belongs to this host now")


@app.command()
def share(
    group: Annotated[str, typer.Argument(help="Group of this host whose members may open the store.")],
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Let the members of a group open an SQLite store. Each of them can then change every job's rows.

    Example: pollux db share vision --store sqlite:////srv/vision/pollux.db
    """
    from pollux_slurm.store.maintenance.administration import share_store

    url = share_store(settings(config_file, store_url).require_store_url(), group)
    print_line(f"{url} may be opened by group {group}")


class Role(str, enum.Enum):
    """The role of a login of a PostgreSQL store."""

    AGENT = "agent"
    READER = "reader"
    ANALYST = "analyst"
    DAEMON = "daemon"


@app.command()
def login(
    name: Annotated[str, typer.Argument(help="The login; for a personal login, the user's name.")],
    roles: Annotated[
        list[Role] | None,
        typer.Option("--role", help="What it may do; repeatable (default: agent and reader)."),
    ] = None,
    shared: Annotated[
        bool, typer.Option(help="One login for the jobs of many users; it may only report.")
    ] = False,
    connections: Annotated[
        int, typer.Option(min=1, max=10_000, help="Maximum of concurrent connections.")
    ] = 10,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Create or change a login of a PostgreSQL store. Needs a superuser's URL; pg_hba.conf decides how the
    login authenticates.

    Example: pollux db login alice --store postgresql:///pollux
    """
    from pollux_slurm.store.maintenance.administration import add_login

    chosen = roles or ([Role.AGENT] if shared else [Role.AGENT, Role.READER])
    wanted = tuple(f"pollux_{role.value}" for role in chosen)
    url = settings(config_file, store_url).require_store_url()
    notes = add_login(url, name, shared=shared, connections=connections, roles=wanted)
    print_line(f"{name} may log in as {', '.join(wanted)}, {connections} connections at a time")
    _print_notes(notes)


def _print_notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        print_note(f"pollux: {note}")


@app.command()
def schema(
    dialect: Annotated[
        str, typer.Argument(help="sqlite or postgresql", autocompletion=choices("sqlite", "postgresql"))
    ] = "sqlite",
) -> None:
    """Print the schema as SQL, with comments, as in sql/schema/.

    Example: pollux db schema postgresql
    """
    from pollux_slurm.store.schema.sql_text import schema_text

    print_text(schema_text(dialect))
