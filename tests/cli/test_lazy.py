"""Commands that are imported when they are used: what is told of them without is what they say."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from pollux_slurm.cli.app import app
from pollux_slurm.cli.lazy import Known, LazyGroup

ROOT: Any = get_command(app)
KNOWN = [(group, one) for group in (ROOT, ROOT.commands["simulate"]) for one in group.known]


@pytest.mark.parametrize(("group", "known"), KNOWN, ids=lambda part: getattr(part, "name", None))
def test_that_a_command_is_listed_with_its_own_first_words(group: LazyGroup, known: Known) -> None:
    command = group.commands[known.name]
    assert command.name == known.name
    assert (command.help or "").split("\n\n")[0].split() == known.line.split()


def test_that_every_command_is_listed_in_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    context = ROOT.make_context("pollux", [], resilient_parsing=True)
    assert ROOT.list_commands(context) == [one.name for one in ROOT.known]
    shown = ROOT.get_help(context) + capsys.readouterr().out
    first_words = [line.strip("│ ").partition(" ")[0] for line in shown.splitlines() if line.startswith("│")]
    names = [one.name for one in ROOT.known]
    assert [word for word in first_words if word in names] == names


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["--help"], ["pollux_slurm.config", "pollux_slurm.cli.status", "numpy"]),
        (
            ["status", "--help"],
            ["pollux_slurm.cli.daemon", "pollux_slurm.cli.simulate", "numpy", "sqlalchemy"],
        ),
        (
            ["simulate", "--help"],
            ["pollux_slurm.config", "pollux_slurm.cli.simulate_sweep", "pollux_slurm.cli.db", "numpy"],
        ),
    ],
    ids=" ".join,
)
def test_that_a_command_imports_no_other(words: list[str], unwanted: list[str]) -> None:
    script = (
        "import sys\nfrom pollux_slurm.cli import main\ntry:\n    main()\nfinally:\n    print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=120, check=True
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert "pollux_slurm.cli.app" in loaded
    assert not set(unwanted) & set(loaded)
