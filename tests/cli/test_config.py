"""`pollux config`: what holds and why, in one place; and the first mistake on one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pollux_slurm.config import load_config
from tests.cli.inside import pollux


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pollux.toml"
    path.write_text(
        '[store]\nurl = "postgresql://me:secret@db/pollux"\n'
        "[policy]\nexponent = -2\n[policy.user_limits]\nada = 4\n"
    )
    return path


def test_that_each_setting_is_printed_with_what_set_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLLUX_DAEMON_INTERVAL_S", "5")
    done = pollux("config", "check", "--config", str(file))
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert "daemon.partitions = all  (default)" in lines
    assert "policy.account_limits = none  (default)" in lines
    assert f"policy.exponent = -2.0  ({file})" in lines
    assert f"policy.user_limits = ada 4  ({file})" in lines
    assert "policy.max_wait_s = not set  (default)" in lines
    assert "daemon.interval_s = 5.0  ($POLLUX_DAEMON_INTERVAL_S)" in lines
    assert "secret" not in done.stdout
    found = json.loads(pollux("config", "check", "--json", "--config", str(file)).stdout)
    assert found["policy.user_limits"] == {"value": {"ada": 4}, "from": str(file)}
    assert set(found) == {key for key, _ in load_config({}).origins}


def test_that_a_mistake_is_one_line(file: Path) -> None:
    file.write_text("[policy]\nexponent = nan\n")
    done = pollux("config", "check", "--config", str(file))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "policy.exponent: expected a number from -20 to 20, not nan" in done.stderr


def test_that_the_daemon_refuses_the_same_before_it_starts(file: Path) -> None:
    file.write_text("[policy.account_weights]\nvision = -1\n")
    # Not inside this process: the daemon takes its signals.
    command = [sys.executable, "-m", "pollux_slurm", "daemon", "--once", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "policy.account_weights.vision: expected a number from 0.01 to 100, not -1" in done.stderr


def test_that_the_example_is_a_settings_file(tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(pollux("config", "example").stdout)
    assert load_config({}, path=path).policy.exponent == -1.0


def test_that_the_unit_is_printed() -> None:
    shown = pollux("config", "unit").stdout
    assert "Type=notify\n" in shown
    assert "ExecReload=/bin/kill -HUP $MAINPID\n" in shown


def test_that_the_unit_names_a_pollux_that_systemd_would_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started_as(folder: Path) -> subprocess.CompletedProcess[str]:
        folder.mkdir()
        (folder / "pollux").touch(mode=0o755)
        monkeypatch.setattr(sys, "executable", str(folder / "python"))
        return pollux("config", "unit")

    monkeypatch.setattr("pollux_slurm.cli.config._SYSTEMD_PATH", str(tmp_path))
    assert f"\nExecStart={tmp_path}/opt/pollux daemon\n" in started_as(tmp_path / "opt").stdout
    odd = started_as(tmp_path / "o p")
    assert (odd.returncode, odd.stdout) == (2, "")
    assert "a unit cannot name this path" in odd.stderr
    (tmp_path / "pollux").touch(mode=0o755)
    assert "\nExecStart=/usr/bin/env pollux daemon\n" in pollux("config", "unit").stdout
