"""`pollux report`: every report in every format, and one line for every error."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pollux_slurm.model import JobState
from pollux_slurm.store import open_store
from tests.cli.inside import pollux
from tests.store.builders import observation, registration

SINCE = ("--since", "2026-02-01", "--until", "2026-04-01")


@pytest.mark.parametrize(
    ("arguments", "kind", "table", "first"),
    [
        (("job", "1"), "job", "samples", "at"),
        (("account", "vision", *SINCE), "account", "user_usage", "day"),
        (("account", *SINCE), "account", "account_usage", "day"),
        (("cluster", *SINCE), "cluster", "account_usage", "day"),
    ],
)
def test_that_every_report_has_every_format(
    url: str, tmp_path: Path, arguments: tuple[str, ...], kind: str, table: str, first: str
) -> None:
    text = pollux("report", *arguments, "--store", url)
    assert (text.returncode, text.stderr) == (0, "")
    assert "A page with plots: pollux report" in text.stdout
    found = json.loads(pollux("report", *arguments, "--json", "--store", url).stdout)
    assert (found["report"], next(iter(found["tables"]))) == (kind, table)
    lines = pollux("report", *arguments, "--csv", "--store", url).stdout.splitlines()
    assert lines[0].split(",")[0] == first
    assert len(lines) == 1 + len(found["tables"][table])
    page = tmp_path / "page.html"
    done = pollux("report", *arguments, "-o", str(page), "--store", url)
    assert (done.returncode, done.stdout) == (0, f"wrote {page}\n")
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_that_a_files_ending_sets_its_format(url: str, tmp_path: Path) -> None:
    for name, begin in (("r.json", "{"), ("r.CSV", "at,"), ("r.txt", "Job 1\n")):
        file = tmp_path / name
        assert pollux("report", "job", "1", "--output", str(file), "--store", url).returncode == 0
        assert file.read_text().startswith(begin)
    assert pollux("report", "job", "1", "--html", "--store", url).stdout.startswith("<!DOCTYPE html>")


def test_that_any_table_can_be_selected(url: str) -> None:
    done = pollux("report", "job", "1", "--csv", "--table", "reallocations", "--store", url)
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    assert (row["source_gpus"], row["target_gpus"], row["step"]) == ("2", "4", "confirmed")
    assert float(row["total_s"]) == pytest.approx(12.5, abs=0.01)


def test_that_a_job_report_may_have_an_end_only(url: str) -> None:
    done = pollux("report", "job", "1", "--until", "2026-03-01T12:00:13", "--csv", "--store", url)
    assert len(done.stdout.splitlines()) == 1 + 3, "three samples came before"


def test_that_no_format_contains_control_characters(store_url: str) -> None:
    """Job names come from other users, and every format may be shown on a terminal."""
    obeyed = "a\x1b[2J\x9b2J\x7f\u202e\u2028\U000e0001\x07b"
    store = open_store(store_url)
    store.jobs.register([registration(1, name=obeyed)], at=registration(1).submitted_at)
    store.close()
    forms: tuple[tuple[str, ...], ...] = ((), ("--csv", "--table", "jobs"), ("--json",), ("--html",))
    for form in forms:
        text = pollux("report", "cluster", *SINCE, *form, "--store", store_url).stdout
        # Pages keep a number and its unit on one line.
        assert all(char in "\n\N{NO-BREAK SPACE}" or char.isprintable() for char in text), form
        if form == ("--json",):
            (job,) = json.loads(text)["tables"]["jobs"]
            assert job["name"] == obeyed


def test_that_the_last_decision_is_in_the_report(url: str) -> None:
    found = json.loads(pollux("report", "job", "1", "--json", "--store", url).stdout)
    assert found["facts"]["explanation"].startswith("job 1 is over: it completed at ")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("job", "77"), 1, "job 77 is not known as an adaptive job; see: pollux status --all"),
        (("account", "nope", *SINCE), 1, "account 'nope' has no adaptive job from 2026-02-01"),
        (("cluster", "--since", "soon"), 2, "--since 'soon' is not a time: write 30d"),
        (("cluster", "--since", "2d", "--until", "3d"), 2, "is not before --until '3d'"),
        (("job", "1", "--csv", "--table", "x"), 2, "no table 'x'; it has samples, reallocations, events"),
        (("job", "1", "--table", "samples"), 2, "--table samples is for --csv"),
        (("job", "1", "--csv", "--json"), 2, "--csv and --json exclude each other"),
        (("job", "1", "-o", "report.doc"), 2, "report.doc: its ending is not a known format"),
        (("job", "1", "-o", "/nowhere/report.html"), 2, "there is no folder /nowhere"),
        (("dashboard", "mysql"), 2, "no dashboard for 'mysql'"),
    ],
)
def test_that_an_error_is_one_line_with_the_next_step(
    url: str, arguments: tuple[str, ...], code: int, words: str
) -> None:
    store = () if arguments[0] == "dashboard" else ("--store", url)
    done = pollux("report", *arguments, *store)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert words in done.stderr


def test_that_a_store_of_another_schema_names_the_command(url: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE pollux_schema_version SET version_num = '0001'")
    connection.close()
    done = pollux("report", "cluster", "--store", url)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "pollux db init" in done.stderr


def test_that_a_store_that_is_not_there_names_the_command(tmp_path: Path) -> None:
    done = pollux("report", "job", "1", "--store", f"sqlite:///{tmp_path}/none.db")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "pollux db init" in done.stderr


def test_that_help_has_an_example_of_each_format() -> None:
    text = " ".join(pollux("report", "--help").stdout.split())
    for form in (
        "pollux report job 1234 ·",
        "--html",
        "--csv --table jobs",
        "--json",
        "report dashboard sqlite",
    ):
        assert form in text
    assert "pollux report account vision --since 30d" in text


@pytest.mark.parametrize("form", [(), ("--json",), ("--html",)])
def test_that_a_terminal_with_another_encoding_gets_no_traceback(url: str, form: tuple[str, ...]) -> None:
    """Job 2's name has Hebrew letters; blocks and dashes are not in Latin-1 either."""
    done = subprocess.run(
        [sys.executable, "-m", "pollux_slurm", "report", "job", "2", *form, "--store", url],
        env={**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
        capture_output=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert ("שלום".encode() in done.stdout) is bool(form)


def test_that_the_dashboard_is_printed() -> None:
    found = json.loads(pollux("report", "dashboard", "sqlite").stdout)
    assert (found["title"], found["uid"]) == ("Pollux for Slurm", "pollux-slurm")
    daemon = json.loads(pollux("report", "dashboard", "prometheus").stdout)
    assert daemon["uid"] == "pollux-slurm-daemon"
    assert pollux("report", "alerts").stdout.count("- alert: Pollux") == 8


def test_that_a_young_store_is_shown_over_its_whole_life(store_url: str) -> None:
    now = datetime.now(timezone.utc)
    began = now - timedelta(hours=2)
    store = open_store(store_url)
    store.jobs.register([registration(1, submitted_at=began)], at=began)
    ended = began + timedelta(minutes=50)
    done = observation(1, JobState.COMPLETED, started_at=began, ended_at=ended)
    store.jobs.observe([done], at=ended)
    store.close()
    for kind in ("cluster", "account"):
        found = json.loads(pollux("report", kind, "--json", "--store", store_url).stdout)
        since, until = (datetime.fromisoformat(found[end]) for end in ("since", "until"))
        assert (since, until) == (began - timedelta(minutes=1), ended + timedelta(minutes=1)), kind
    asked = json.loads(pollux("report", "cluster", "--since", "30d", "--json", "--store", store_url).stdout)
    assert datetime.fromisoformat(asked["until"]) - datetime.fromisoformat(asked["since"]) == timedelta(30)

    store = open_store(store_url)
    store.jobs.register([registration(2, submitted_at=ended)], at=ended)
    store.close()
    found = json.loads(pollux("report", "cluster", "--json", "--store", store_url).stdout)
    assert datetime.fromisoformat(found["until"]) >= now, "job 2 is still there"
    assert datetime.fromisoformat(found["since"]) > began - timedelta(minutes=10)


def test_that_the_life_of_a_store_has_the_gpu_hours_of_jobs_submitted_before_it(store_url: str) -> None:
    """Job 1 has held two GPUs for 40 days; job 2 was there for half an hour, that ended today."""
    now = datetime.now(timezone.utc)
    old, yesterday = now - timedelta(days=40), now.replace(hour=0, minute=0) - timedelta(minutes=29)
    store = open_store(store_url)
    store.jobs.register([registration(1, submitted_at=old), registration(2, submitted_at=yesterday)], at=old)
    ended = yesterday + timedelta(minutes=30)
    done = observation(2, JobState.COMPLETED, started_at=yesterday, ended_at=ended)
    store.jobs.observe([observation(1, gpus={"n1": 2}, started_at=old), done], at=ended)
    store.close()
    for kind in ("cluster", "account"):
        found = json.loads(pollux("report", kind, "--json", "--store", store_url).stdout)
        since, until = (datetime.fromisoformat(found[end]) for end in ("since", "until"))
        assert until - since == timedelta(days=30), kind
        assert until >= now, kind
