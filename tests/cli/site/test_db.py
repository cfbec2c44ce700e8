"""`pollux db` as typed: what it prints, and its exit codes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pollux_slurm.store.schema import REVISIONS
from tests.cli.inside import pollux


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, without settings of this user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("POLLUX_")]:
        monkeypatch.delenv(name)
    return tmp_path


def test_that_a_store_is_created_checked_and_upgraded(tmp_path: Path) -> None:
    store = ("--store", f"sqlite:///{tmp_path}/pollux.db")
    outputs = []
    for action in ("init", "init", "check", "upgrade"):
        done = pollux("db", action, *store)
        assert (done.returncode, done.stderr) == (0, "")
        outputs.append(done.stdout)
    assert outputs[0].startswith("created the tables in sqlite:///")
    assert outputs[1].startswith("the tables exist already")
    assert "is good" in outputs[2]
    assert "is already at schema" in outputs[3]


def test_that_the_first_schema_has_none_before_it(tmp_path: Path) -> None:
    store = ("--store", f"sqlite:///{tmp_path}/pollux.db")
    pollux("db", "init", *store)
    done = pollux("db", "downgrade", REVISIONS[-1], *store)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"is already at schema {REVISIONS[-1]}" in done.stdout
    done = pollux("db", "downgrade", "0104", *store)
    assert done.returncode == 1
    assert f"there is no schema '0104' to go back to; there is: {', '.join(REVISIONS)}" in done.stderr
    assert pollux("db", "check", *store).returncode == 0


@pytest.mark.parametrize("action", ["check", "upgrade"])
def test_that_the_advice_for_a_missing_store_works_when_typed(tmp_path: Path, action: str) -> None:
    url = f"sqlite:///{tmp_path}/my pollux.db"
    done = pollux("db", action, "--store", url)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    command = done.stderr.strip().split("make it: pollux ")[1]
    assert pollux(*shlex.split(command)).returncode == 0
    assert pollux("db", action, "--store", url).returncode == 0


def test_that_a_missing_store_is_an_error_with_how_to_set_one(tmp_path: Path) -> None:
    done = pollux("db", "init")
    assert (done.returncode, done.stdout) == (2, "")
    assert "POLLUX_STORE_URL" in done.stderr


def test_that_damage_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "pollux.db"
    path.write_text("no database at all " * 300)
    command = [sys.executable, "-W", "error", "-m", "pollux_slurm", "db", "check"]
    done = subprocess.run(
        [*command, "--store", f"sqlite:///{path}"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_that_the_schema_is_printed(tmp_path: Path, dialect: str) -> None:
    done = pollux("db", "schema", dialect)
    assert done.returncode == 0
    assert "CREATE TABLE jobs" in done.stdout
    assert pollux("db", "schema", "oracle").returncode == 2


def test_that_prune_prints_what_it_deleted(tmp_path: Path) -> None:
    store = ("--store", f"sqlite:///{tmp_path}/pollux.db")
    pollux("db", "init", *store)
    done = pollux("db", "prune", "--older-than", "90d", *store)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("UTC: nothing\n")
    done = pollux("db", "prune", "--older-than", "soon", *store)
    assert done.returncode != 0
    assert "'soon' is not a duration" in done.stderr
