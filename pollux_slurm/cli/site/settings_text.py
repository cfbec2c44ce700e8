"""Settings as text for people, made from their definitions in `config`: a file to begin with, and a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from pollux_slurm.config import Config, known_sections

_HEAD = """\
# Settings of pollux: every key with its default. A key after # is not set.
# The file is /etc/pollux/pollux.toml, or a user's own, ~/.config/pollux/pollux.toml, which replaces it.
# `pollux config check` prints the settings and their origin. A variable POLLUX_<TABLE>_<KEY> overrides a key.
"""


def example() -> str:
    """Return a settings file with every key, its default and its meaning."""
    parts = [_HEAD]
    for section, fields in _sections():
        lines, tables = [f"[{section}]"], []
        for entry in fields:
            if "everyone" in entry.metadata:
                title = f"[{section}.{entry.name}]"
                tables.append(f"{title:<44} # {entry.metadata['meaning']}\n# {entry.metadata['example']}\n")
            else:
                lines.append(f"{_assignment(entry):<44} # {_meaning(entry)}")
        parts += ["\n".join(lines) + "\n", *tables]
    return "\n".join(parts)


def table() -> str:
    """Return a Markdown table with a row for each key: default, bounds and meaning."""
    rows = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for section, fields in _sections():
        for entry in fields:
            default = "–" if entry.default in (None, ()) else _toml(entry.default).strip('"')
            rows.append(
                f"| `{section}.{entry.name}` | {default} | {_allowed(entry)} | {entry.metadata['meaning']} |"
            )
    return "\n".join(rows) + "\n"


def _sections() -> Iterator[tuple[str, tuple[dataclasses.Field[Any], ...]]]:
    for name in known_sections():
        yield name, dataclasses.fields(getattr(Config(), name))


def _assignment(entry: dataclasses.Field[Any]) -> str:
    """Return the line that sets a key to its default, or for one without, an example after #."""
    if entry.metadata["example"] is not None:
        return f"# {entry.name} = {entry.metadata['example']}"
    return f"{entry.name} = {_toml(entry.default)}"


def _meaning(entry: dataclasses.Field[Any]) -> str:
    choices = entry.metadata.get("choices")
    return str(entry.metadata["meaning"]) + (f" ({', '.join(choices)})" if choices else "")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return "[]" if value == () else str(value)


def _allowed(entry: dataclasses.Field[Any]) -> str:
    """Return what a value may be: the choices, or the least and the most number."""
    rules, kind = entry.metadata, str(entry.type)
    if "choices" in rules:
        return ", ".join(f"`{choice}`" for choice in rules["choices"])
    if "least" in rules:
        below = "below " if rules["below"] else ""
        span = f"{rules['least']:.8g} to {below}{rules['most']:.8g}"
        return f"each {span}" if "everyone" in rules else span
    if "bool" in kind:
        return "`true`, `false`"
    return "a list of texts" if "tuple" in kind else "a text"
