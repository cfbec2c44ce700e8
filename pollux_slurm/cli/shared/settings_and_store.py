"""The settings, with options above them, an open store, and printing of JSON and text."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux_slurm.text import one_line, shown, shown_lines

if TYPE_CHECKING:
    from rich.console import Console

    from pollux_slurm.config import Config
    from pollux_slurm.store.contract.interface import Store

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="Settings file instead of your own or /etc/pollux/pollux.toml."),
]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", help="SQLAlchemy URL of the store, such as sqlite:////path/to/pollux.db."),
]
_BEYOND_ASCII = re.compile(r"[^\n -~]")
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def settings(config_file: Path | None, store_url: str | None) -> Config:
    """Return the settings: file, above it the environment, above it `--store`."""
    # Imported here, since not every command needs settings.
    from pollux_slurm.config import load_config

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


def console(width: int = 200) -> Console:
    """Return stdout as rich has it, in a pipe or a file, which has no width, of `width` characters."""
    from rich.console import Console

    found = Console()
    if not found.is_terminal:
        found.width = width
    return found


def print_json(value: Any) -> None:
    """Print a value of plain containers as indented JSON; dates become ISO 8601 text."""
    is_unicode = _encoding().lower().startswith("utf")
    text = json.dumps(value, indent=2, ensure_ascii=not is_unicode, default=str)
    _echo(escaped_json(text) + "\n")


def escaped_json(text: str) -> str:
    """Return equivalent JSON in which control characters in other users' names are escaped."""
    return _BEYOND_ASCII.sub(lambda found: _as_escape(found.group()), text)


def _as_escape(char: str) -> str:
    if char.isprintable():
        return char
    # A lone surrogate is valid in JSON only as an escape.
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def print_line(text: str) -> None:
    """Print one line, whatever texts of others are in it."""
    _echo(shown(text) + "\n")


def print_text(text: str) -> None:
    """Print lines, each with its end, in which no end of a line is another's."""
    _echo(shown_lines(text))


def print_note(text: str) -> None:
    """Print what is said beside a command's answer, as one line on stderr."""
    typer.echo(one_line(text), err=True)


def _echo(text: str) -> None:
    # A character that the terminal's encoding lacks is printed as an escape.
    typer.echo(text.encode(_encoding(), "backslashreplace").decode(_encoding()), nl=False)


def _encoding() -> str:
    return sys.stdout.encoding or "utf-8"
