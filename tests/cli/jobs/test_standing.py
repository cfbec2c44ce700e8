"""`pollux` alone: where one stands, and never an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pollux_slurm.cli.jobs.standing import COMMANDS
from pollux_slurm.model import JobState
from pollux_slurm.store import open_store
from tests.cli.inside import pollux
from tests.report.stories import filled_store
from tests.store.builders import at, observation


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("POLLUX")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LOGNAME", "grace")


def lines(url: str | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    if url is not None:
        monkeypatch.setenv("POLLUX_STORE_URL", url)
    done = pollux()
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert all(any(command in line for line in said) for command, _ in COMMANDS)
    return said


def test_that_without_a_store_it_says_how_to_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    said = lines(None, monkeypatch)
    assert said[0] == "No store is set: jobs train, but are neither moved nor measured."
    assert said[1] == "To make one: pollux init"


def test_that_a_store_that_is_not_there_is_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/../a...b/no.db"
    assert lines(url, monkeypatch)[0].startswith(f"there is no store at {tmp_path}/../a...b/no.db; ")


def test_that_it_counts_ones_own_jobs_and_names_a_daemon_that_does_not_run(
    monkeypatch: pytest.MonkeyPatch, store_template: Path, tmp_path: Path
) -> None:
    """Job 2 is grace's and runs."""
    url = filled_store(store_template, tmp_path)
    first, second, *_ = lines(url, monkeypatch)
    assert first.startswith("No daemon ")
    assert first.endswith("To start one: pollux daemon")
    assert second == "Your adaptive jobs: 1 running."
    store = open_store(url)
    store.jobs.observe([observation(2, JobState.COMPLETED, ended_at=at(95))], at=at(96))
    store.close()
    assert (
        lines(url, monkeypatch)[1]
        == "None of your adaptive jobs is registered; of one just submitted: pollux status."
    )
