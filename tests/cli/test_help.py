"""Every command's help has an example, and every example is accepted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from pollux_slurm.cli.app import app


def commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from commands(inner, *path, name)


ALL = dict(commands(get_command(app)))


def examples(command: Any) -> list[list[str]]:
    """Return the arguments of `pollux` in each example of a command's help."""
    text = f"{command.help or ''}\n{command.epilog or ''}"
    _, found, rest = text.partition("Example")
    assert found, "no example"
    # A paragraph's end, a dot between two or a shell's sign ends a command; a line's end alone may not.
    shown = re.findall(r"(?<![\w/-])pollux ((?:(?!\n\s*\n|·|[;>|)`]|\n\s+pollux ).)*)", rest, re.DOTALL)
    return [shlex.split(words) for words in shown]


@pytest.mark.parametrize("path", sorted(ALL), ids=lambda path: " ".join(path) or "pollux")
def test_that_every_command_has_an_example_that_it_accepts(path: tuple[str, ...]) -> None:
    shown = examples(ALL[path])
    assert any(tuple(words[: len(path)]) == path for words in shown)
    for words in shown:
        used = max((known for known in ALL if tuple(words[: len(known)]) == known), key=len)
        assert used, f"there is no command: pollux {' '.join(words)}"
        # The rest are options of sbatch or of the training.
        if used in (("sbatch",), ("run",), ("rehearse",)):
            continue
        if "--help" in words or hasattr(ALL[used], "commands"):
            taken = {name for option in ALL[used].params for name in (*option.opts, *option.secondary_opts)}
            assert {word.partition("=")[0] for word in words if re.match("-.", word)} <= taken | {"--help"}
        else:
            # The parser itself: unknown options, wrong numbers and missing arguments are errors.
            ALL[used].make_context(used[-1], words[len(used) :]).close()
