"""What several commands share: settings with flags above them, an open store, a JSON printer."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux_slurm.config import Config, load_config

if TYPE_CHECKING:
    from pollux_slurm.store.contract import Store

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Settings file instead of /etc/pollux/pollux.toml.")
]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", help="SQLAlchemy URL of the store, such as sqlite:////path/to/pollux.db."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def settings(config_file: Path | None, store_url: str | None) -> Config:
    """Return the settings that hold: file, then environment, then `--store`."""
    config = load_config(os.environ, path=config_file)
    if store_url is None:
        return config
    return dataclasses.replace(config, store=dataclasses.replace(config.store, url=store_url))


@contextmanager
def opened_store(config: Config) -> Iterator[Store]:
    """Open the configured store and close it again."""
    from pollux_slurm.store import open_store

    store = open_store(config.require_store_url())
    try:
        yield store
    finally:
        store.close()


def print_json(value: Any) -> None:
    """Print a value of plain containers as indented JSON; dates become ISO 8601 text."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))
