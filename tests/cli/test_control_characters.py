"""Other users' names on the terminal: control characters are escaped."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from unittest import mock

import pytest

from pollux_slurm.cli import main
from pollux_slurm.policy.problem.json_format import problem_to_json
from tests.cli.inside import pollux
from tests.policy.builders import job, node, problem

HALF, ESCAPE = "a\ud800", "a\x1b[2J\nb\u202e\x9b2J"


def saved(folder: Path, name: str) -> str:
    """Write a problem in which jobs, nodes and GPU types have odd names; return its path."""
    cluster = (node(name, gpu_type=name), node("n1"))
    odd = job(name, pinned=True, pinned_because=name)
    jobs = (odd, job("7", {name: 1}, account=name), job("8", weight=0.0))
    file = folder / "problem.json"
    file.write_text(problem_to_json(problem(cluster, *jobs)))
    return str(file)


@pytest.mark.parametrize("name", [HALF, ESCAPE])
def test_that_odd_names_are_printed_as_escapes(tmp_path: Path, name: str) -> None:
    file = saved(tmp_path, name)
    for command in (("replay", file), ("replay", file, "--compare"), ("explain", "7", "--problem", file)):
        done = pollux(*command)
        assert done.returncode == 0, done.stderr
        assert all(char.isprintable() or char == "\n" for char in done.stdout)
    lines = pollux("replay", file).stdout.splitlines()
    assert len(lines) == 4  # three jobs, and the summary
    assert lines[0].startswith(f"job {name!r}:".replace("'", ""))


@pytest.mark.parametrize("name", [HALF, ESCAPE])
def test_that_odd_names_come_back_from_json(tmp_path: Path, name: str) -> None:
    file = saved(tmp_path, name)
    printed = pollux("replay", file, "--json").stdout
    assert all(char.isprintable() or char == "\n" for char in printed)
    assert set(json.loads(printed)["allocations"]) == {name, "7", "8"}
    assert json.loads(pollux("explain", name, "--problem", file, "--json").stdout)["job_id"] == name


def test_that_a_character_that_the_terminal_lacks_is_escaped(tmp_path: Path) -> None:
    file = saved(tmp_path, "ß")
    for options in ([], ["--json"]):
        out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        arguments = mock.patch.object(sys, "argv", ["pollux", "replay", file, *options])
        with contextlib.redirect_stdout(out), arguments, contextlib.suppress(SystemExit):
            main()
        out.flush()
        shown = out.buffer.getvalue()
        assert ("ß" in json.loads(shown)["allocations"]) if options else (b"job \\xdf:" in shown)
