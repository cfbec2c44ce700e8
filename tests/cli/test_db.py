"""`pollux db` as typed: what it prints, and its exit codes."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest


def pollux(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(cwd)}
    command = [sys.executable, "-W", "error", "-m", "pollux_slurm", *arguments]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=120)


def test_that_a_store_is_made_checked_and_upgraded(tmp_path: Path) -> None:
    store = ("--store", f"sqlite:///{tmp_path}/pollux.db")
    outputs = []
    for action in ("init", "init", "check", "upgrade"):
        done = pollux("db", action, *store, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        outputs.append(done.stdout)
    assert outputs[0].startswith("made the tables of sqlite:///")
    assert outputs[1].startswith("the tables are there already")
    assert "is good" in outputs[2]
    assert "is already at schema" in outputs[3]


@pytest.mark.parametrize("action", ["check", "upgrade"])
def test_that_the_advice_for_a_missing_store_works_when_typed(tmp_path: Path, action: str) -> None:
    url = f"sqlite:///{tmp_path}/my pollux.db"
    done = pollux("db", action, "--store", url, cwd=tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    command = done.stderr.strip().split("make it: pollux ")[1]
    assert pollux(*shlex.split(command), cwd=tmp_path).returncode == 0
    assert pollux("db", action, "--store", url, cwd=tmp_path).returncode == 0


def test_that_no_store_configured_says_how_to_configure_one(tmp_path: Path) -> None:
    done = pollux("db", "init", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "POLLUX_STORE_URL" in done.stderr


def test_that_damage_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "pollux.db"
    path.write_text("no database at all " * 300)
    done = pollux("db", "check", "--store", f"sqlite:///{path}", cwd=tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_that_the_schema_is_printed(tmp_path: Path, dialect: str) -> None:
    done = pollux("db", "schema", dialect, cwd=tmp_path)
    assert done.returncode == 0
    assert "CREATE TABLE jobs" in done.stdout
    assert pollux("db", "schema", "oracle", cwd=tmp_path).returncode == 2


def test_that_prune_tells_what_it_deleted(tmp_path: Path) -> None:
    store = ("--store", f"sqlite:///{tmp_path}/pollux.db")
    pollux("db", "init", *store, cwd=tmp_path)
    done = pollux("db", "prune", "--older-than", "90d", *store, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("UTC: nothing\n")
    done = pollux("db", "prune", "--older-than", "soon", *store, cwd=tmp_path)
    assert done.returncode != 0
    assert "'soon' is no span of time" in done.stderr
