"""The commands in docs/evaluation.md and docs/benchmark.md."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.main import get_command

from pollux_slurm.cli.app import app
from pollux_slurm.simulator.experiments.experiment import read_experiment

DOCS = Path(__file__).resolve().parents[3] / "docs"
EVALUATION = (DOCS / "evaluation.md").read_text(encoding="utf-8")
TEXT = EVALUATION + (DOCS / "benchmark.md").read_text(encoding="utf-8")


def commands(text: str = TEXT) -> Sequence[tuple[str, ...]]:
    text = text.replace("\\\n", " ")
    lines = re.findall(r"^pollux simulate .*$", text, flags=re.MULTILINE)
    return [tuple(shlex.split(line)[2:]) for line in lines]


def test_that_there_are_commands() -> None:
    assert len(commands()) >= 8
    assert {words[0] for words in commands() if not words[0].startswith("--")} == {
        "export",
        "places.toml",
        "generate",
        "import-sacct",
        "import-trace",
        *(f"{name}.toml" for name in ("adoption", "load", "objectives", "restarts", "workloads")),
        *("experiment.toml", "examples/scheduler/experiment.toml"),
        *(f"examples/comparison/{name}.toml" for name in ("short", "full", "few")),
    }


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_that_every_option_in_the_commands_exists(words: tuple[str, ...]) -> None:
    simulate = get_command(app).commands["simulate"]  # type: ignore[attr-defined]
    command = simulate.commands.get(words[0], simulate)
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known


def test_that_options_in_the_text_exist() -> None:
    options = set(re.findall(r"`(--[a-z-]+)", TEXT))
    simulate = get_command(app).commands["simulate"]  # type: ignore[attr-defined]
    every = [simulate, *simulate.commands.values()]
    known = {name for command in every for parameter in command.params for name in parameter.opts}
    assert len(options) >= 3
    assert options <= known


def test_that_the_experiments_on_the_page_can_be_run(tmp_path: Path) -> None:
    """Each block of TOML begins with its file's name, which a command after it names; others are shipped."""
    blocks = re.findall(r"```toml\n# (\S+)\n(.*?)```", EVALUATION, flags=re.DOTALL)
    assert {name for name, _ in blocks} == {
        words[0]
        for words in commands(EVALUATION)
        if words[0].endswith(".toml") and not (DOCS.parent / words[0]).is_file()
    }
    for name, text in blocks:
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        assert read_experiment(file, {"traces": "traces"}).policies
