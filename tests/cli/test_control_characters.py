"""Other users' texts on the terminal and in logs: no character moves others or begins a line."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from pollux_slurm import cli
from pollux_slurm.cli import main
from pollux_slurm.model import JobState
from pollux_slurm.policy.problem.json_format import problem_to_json
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.text import shown
from tests.cli.inside import pollux
from tests.policy.builders import job, node, problem
from tests.store.builders import at, observation, registration

BOX = "\N{REPLACEMENT CHARACTER}"
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
def test_that_odd_names_are_printed_without_their_control_characters(tmp_path: Path, name: str) -> None:
    file = saved(tmp_path, name)
    for command in (("replay", file), ("replay", file, "--compare"), ("explain", "7", "--problem", file)):
        done = pollux(*command)
        assert done.returncode == 0, done.stderr
        assert all(char.isprintable() or char == "\n" for char in done.stdout)
    lines = pollux("replay", file).stdout.splitlines()
    assert len(lines) == 4  # three jobs, and the summary
    assert lines[0].startswith(f"job {shown(name)}:")


@pytest.mark.parametrize("name", [HALF, ESCAPE])
def test_that_odd_names_come_back_from_json(tmp_path: Path, name: str) -> None:
    file = saved(tmp_path, name)
    printed = pollux("replay", file, "--json").stdout
    assert all(char.isprintable() or char == "\n" for char in printed)
    assert set(json.loads(printed)["allocations"]) == {name, "7", "8"}
    assert json.loads(pollux("explain", name, "--problem", file, "--json").stdout)["slurm_job_id"] == name


def test_that_a_character_that_the_terminal_lacks_is_escaped(tmp_path: Path) -> None:
    file = saved(tmp_path, "ß")
    for options in ([], ["--json"]):
        out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        arguments = mock.patch.object(sys, "argv", ["pollux", "replay", file, *options])
        with contextlib.redirect_stdout(out), arguments, contextlib.suppress(SystemExit):
            main()
        out.flush()
        printed = out.buffer.getvalue()
        assert ("ß" in json.loads(printed)["allocations"]) if options else (b"job \\xdf:" in printed)


def test_that_an_error_is_one_line_whatever_names_are_in_it(store: Store, store_url: str) -> None:
    store.jobs.register([registration(1, account="a\x1b[2J\npollux: forged")], at=at(0))
    store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(1))], at=at(1))
    store.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(3601))], at=at(3601))
    done = pollux("report", "account", "nope", "--since", "2026-03-01", "--store", store_url)
    assert done.returncode == 1
    assert f"a{BOX}[2J pollux: forged" in done.stderr
    assert done.stderr.count("\n") == 1


def test_that_no_command_prints_but_by_the_functions_that_clean() -> None:
    """Help is Typer's own, a report is drawn clean, and a shell reads what `env` prints."""
    printing = re.compile(r"typer\.(?:echo|secho)\(|(?<![\w.])print\(|std(?:out|err)\.write")
    found = {
        (file.name, match.group())
        for file in Path(cli.__file__).parent.rglob("*.py")
        for match in printing.finditer(file.read_text(encoding="utf-8"))
    }
    assert found == {
        ("settings_and_store.py", "typer.echo("),
        ("sbatch.py", "typer.echo("),
        ("report_output.py", "typer.echo("),
        ("sandbox.py", "typer.echo("),
        ("rehearse_progress.py", "stderr.write"),
    }


REASON = "its script: no\n2026-11-28 12:00:00,000 INFO job 7: confirmed\x1b[2J"
LOGGED = """
import logging, sys
from pollux_slurm.cli import main
sys.argv = ["pollux", *sys.argv[2:], "--store", "sqlite:////nowhere/pollux.db"]
try:
    main()
except SystemExit:
    logging.getLogger("pollux_slurm.daemon.enact.in_place").warning("job 1: refused: %s", {reason!r})
"""


@pytest.mark.parametrize(
    ("command", "head"), [("daemon", r"[-0-9]+ [:,0-9]+ WARNING "), ("db check", "pollux: ")]
)
def test_that_a_jobs_words_are_one_line_of_a_log(command: str, head: str) -> None:
    code = LOGGED.format(reason=REASON)
    done = subprocess.run(
        [sys.executable, "-c", code, "-", *command.split()],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    line = done.stderr.splitlines()[-1]
    said = f"job 1: refused: {shown(REASON.replace(chr(10), ' '))}"
    assert re.fullmatch(head + re.escape(said), line)


def test_that_the_status_shows_no_control_character_of_a_name(store: Store, store_url: str) -> None:
    store.jobs.register([registration(1, name=ESCAPE, user_name=ESCAPE)], at=at(0))
    store.jobs.observe([observation(1, gpus={ESCAPE: 2}, started_at=at(1))], at=at(1))
    done = pollux("status", "--store", store_url)
    assert f"a{BOX}[2J{BOX}b" in done.stdout
    assert all(char.isprintable() or char == "\n" for char in done.stdout + done.stderr)
