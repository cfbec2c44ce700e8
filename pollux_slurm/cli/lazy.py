"""Groups of commands of which only the one that is used is imported.

To make a command, typer reads the signature of its function, and to read it the module must be imported:
for all of `pollux` that takes longer than most commands do. So a group knows its commands by name and module,
and by the line that its help shows of each.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A command by name: `attribute` of `module` is its function, or the `Typer` of its own commands.

    `line` is the first paragraph of its help; `settings` are those of `Typer.command` for a function.
    """

    name: str
    module: str
    attribute: str
    line: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Any:
        """Import the module; return the command."""
        found = getattr(importlib.import_module(self.module), self.attribute)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        alone = typer.Typer(add_completion=False)
        alone.command(self.name, **self.settings)(found)
        return typer.main.get_command(alone)


class _Loaded(Mapping[str, Any]):
    """The commands, in their order; each is loaded when it is first looked up."""

    def __init__(self, known: tuple[Known, ...]) -> None:
        self._known = {one.name: one for one in known}
        self._commands: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._commands:
            self._commands[name] = self._known[name].load()
        return self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class LazyGroup(TyperGroup):
    """A group of the commands that its class `known` names."""

    known: ClassVar[tuple[Known, ...]]

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Loaded(self.known)  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in their order."""
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the lines that are known, and load nothing."""
        listed = copy.copy(self)
        listed.commands = {one.name: TyperCommand(one.name, help=one.line) for one in self.known}
        super(LazyGroup, listed).format_help(ctx, formatter)
