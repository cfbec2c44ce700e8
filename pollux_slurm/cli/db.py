"""`pollux db`: make, upgrade and check the store's schema."""

from __future__ import annotations

from typing import Annotated

import typer

from pollux_slurm.cli.common import ConfigOption, StoreOption, settings
from pollux_slurm.errors import StoreError

app = typer.Typer(name="db", help="Make, upgrade and check the store.", no_args_is_help=True)


@app.command()
def init(config_file: ConfigOption = None, store_url: StoreOption = None) -> None:
    """Make the store's tables; nothing happens when they are there.

    Example: pollux db init --store sqlite:////var/lib/pollux/pollux.db
    """
    from pollux_slurm.store.administration import init_store

    outcome = init_store(settings(config_file, store_url).require_store_url())
    made = "made the tables of" if outcome.changed else "the tables are there already in"
    typer.echo(f"{made} {outcome.url} (schema {outcome.version})")


@app.command()
def upgrade(config_file: ConfigOption = None, store_url: StoreOption = None) -> None:
    """Bring the store's tables to this release's schema, keeping the data. Stop the daemon first.

    Example: pollux db upgrade
    """
    from pollux_slurm.store.administration import upgrade_store

    outcome = upgrade_store(settings(config_file, store_url).require_store_url())
    done = f"upgraded from {outcome.before} to" if outcome.changed else "is already at"
    typer.echo(f"{outcome.url} {done} schema {outcome.version}")


@app.command()
def check(config_file: ConfigOption = None, store_url: StoreOption = None) -> None:
    """Check that the store can be read, has this release's schema, and is undamaged.

    Example: pollux db check
    """
    from pollux_slurm.store.administration import check_store

    outcome = check_store(settings(config_file, store_url).require_store_url())
    if outcome.problems:
        raise StoreError(f"{outcome.url}: {'; '.join(outcome.problems)}")
    typer.echo(f"{outcome.url} is good (schema {outcome.version})")


@app.command()
def schema(
    dialect: Annotated[str, typer.Argument(help="sqlite or postgresql")] = "sqlite",
) -> None:
    """Print the schema as SQL text, with comments: the form that stands in sql/schema/.

    Example: pollux db schema postgresql
    """
    from pollux_slurm.store.schema_text import schema_text

    typer.echo(schema_text(dialect), nl=False)
