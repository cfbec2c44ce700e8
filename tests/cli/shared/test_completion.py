"""Completion by the protocol of the shells, against a real store."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pollux_slurm.cli.shared import completion
from pollux_slurm.model import JobState
from pollux_slurm.simulator.engine.cluster_rules import RULES
from pollux_slurm.simulator.policies import POLICIES
from pollux_slurm.store import open_store
from tests.cli.inside import pollux
from tests.report.stories import HOSTILE, filled_store
from tests.store.builders import at, observation, registration


@pytest.fixture(autouse=True)
def _only_this_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("POLLUX")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    # However busy the machine: an answer is waited for.
    monkeypatch.setattr(completion, "ANSWER_S", 300.0)


@pytest.fixture
def url(store_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    found = filled_store(store_template, tmp_path)
    monkeypatch.setenv("POLLUX_STORE_URL", found)
    return found


def offered(line: str, monkeypatch: pytest.MonkeyPatch, *, shell: str = "bash") -> list[str]:
    """Return what the shell would offer for a line that ends where TAB is pressed."""
    monkeypatch.setenv("_POLLUX_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    done = pollux()
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n") if shell == "zsh" else done.stdout.split()


def test_that_jobs_that_are_not_over_come_first(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Job 1 of the story is over, 2 runs, 3 waits."""
    assert offered("pollux explain ", monkeypatch) == ["3", "2", "1"]
    assert offered("pollux report job 2", monkeypatch) == ["2"]
    assert offered("pollux pause ", monkeypatch) == ["3", "2"]


def test_that_the_store_of_the_command_line_is_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLLUX_STORE_URL")
    assert offered("pollux status ", monkeypatch) == []
    assert offered(f"pollux status --store {url} ", monkeypatch) == ["3", "2", "1"]


def test_that_accounts_are_offered(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered("pollux report account ", monkeypatch) == ["physics", "vision"]
    assert offered("pollux report account v", monkeypatch) == ["vision"]


def test_that_nothing_reaches_the_shell_that_it_would_evaluate(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(url)
    store.jobs.register([registration(7, name=HOSTILE, account="$(touch taken)")], at=at(95))
    store.jobs.observe([observation(7, JobState.PENDING)], at=at(96))
    store.close()
    assert offered("pollux report account ", monkeypatch) == ["physics", "vision"]
    shown = "\n".join(offered("pollux explain 7", monkeypatch, shell="zsh"))
    _, found, meaning = shown.partition('"7":"pending ')
    assert found
    assert set(meaning.partition('"')[0]) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.@+ -")


def test_that_choices_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered("pollux simulate --policy ", monkeypatch) == list(POLICIES)
    assert offered("pollux simulate --rules ", monkeypatch) == list(RULES)
    assert "price-rank" in offered("pollux replay --objective ", monkeypatch)
    assert offered("pollux db schema p", monkeypatch) == ["postgresql"]


@pytest.mark.parametrize("broken", ["no file", "no tables", "wrong settings"])
def test_that_a_failure_offers_nothing_and_prints_nothing(broken: str, tmp_path: Path) -> None:
    file = tmp_path / "pollux.db"
    if broken == "no tables":
        file.write_bytes(b"not a database")
        file.chmod(0o600)
    environ = {**os.environ, "POLLUX_STORE_URL": f"sqlite:///{file}", "_POLLUX_COMPLETE": "complete_bash"}
    environ |= {"COMP_WORDS": "pollux explain ", "COMP_CWORD": "2"}
    if broken == "wrong settings":
        environ["POLLUX_DAEMON_TICK_S"] = "soon"
    script = "import sys; sys.argv[0] = 'pollux'; from pollux_slurm.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_that_a_store_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server accepts connections and says nothing; without a limit this would wait for ten seconds."""
    pytest.importorskip("psycopg")
    monkeypatch.setattr(completion, "ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv("POLLUX_STORE_URL", f"postgresql://127.0.0.1:{port}/pollux?connect_timeout=600")
        assert offered("pollux explain ", monkeypatch) == []
