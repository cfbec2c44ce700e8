"""`pollux config`: each setting with its origin, and the first error on one line."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from pollux_slurm.cli.site.daemon import daemon_settings
from pollux_slurm.config import Config, load_config
from pollux_slurm.errors import ConfigError
from tests.cli.inside import pollux


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pollux.toml"
    path.write_text(
        '[store]\nurl = "postgresql://me:secret@db/pollux"\n'
        "[policy]\nexponent = -2\n[policy.user_limits]\nada = 4\n"
    )
    return path


def test_that_each_setting_is_printed_with_its_origin(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    for key in ("password", "sslpassword"):
        monkeypatch.setenv("POLLUX_STORE_URL", f"postgresql://db/pollux?{key}=secret")
        done = pollux("config", "check", "--config", str(file))
        assert "store.url = postgresql+psycopg://db/pollux" in done.stdout
        assert "secret" not in done.stdout + repr(load_config(dict(os.environ)))
    monkeypatch.delenv("POLLUX_STORE_URL")
    found = json.loads(pollux("config", "check", "--json", "--config", str(file)).stdout)
    assert found["policy.user_limits"] == {"value": {"ada": 4}, "from": str(file)}
    assert set(found) == {key for key, _ in load_config({}).origins}


def test_that_an_error_is_one_line(file: Path) -> None:
    file.write_text("[policy]\nexponent = nan\n")
    done = pollux("config", "check", "--config", str(file))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "policy.exponent: expected a number from -20 to 20, not nan" in done.stderr


def test_that_the_daemon_refuses_the_same_before_it_starts(file: Path) -> None:
    file.write_text("[policy.account_weights]\nvision = -1\n")
    # Not inside this process: the daemon takes its signals.
    command = [sys.executable, "-m", "pollux_slurm", "daemon", "--once", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "policy.account_weights.vision: expected a number from 0.01 to 100, not -1" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '[daemon]\nmetrics_listen = "9748"\n',
            "daemon.metrics_listen: expected host:port or off, not '9748'",
        ),
        ("[daemon]\nlease_ttl_s = 91\n", "one and a half times daemon.interval_s (90)"),
        ("[daemon]\ninterval_s = 10\nlease_ttl_s = 30\n", "one and a half times daemon.interval_s (15)"),
        ("[daemon]\ntick_s = 5\nlease_ttl_s = 10\n", "four times daemon.tick_s (20)"),
        ("[daemon]\nrestart_delay_s = 400\n", "daemon.max_restart_delay_s = 300"),
        ("[daemon]\ninterval_s = 5\ntick_s = 6\n", "daemon.tick_s = 6"),
        ("[daemon]\ninterval_s = 600\n", "daemon.pause_ttl_s = 900: rounds renew it"),
        ("[daemon]\ncheckpoint_timeout_s = 3\n", "agent.poll_interval_s = 2"),
        ('[daemon]\npartitions = ["a,b"]\n', "daemon.partitions: 'a,b' is not a partition's name"),
        ('[slurm]\nbin_dir = "/no/such/folder"\n', "slurm.bin_dir: /no/such/folder: there is no such folder"),
        ('[templates]\ndir = "/no/such/folder"\n', "templates.dir: /no/such/folder"),
        ("[policy]\nexponent = 0\nfloor = 1e-9\nhorizon_s = 1e13\n", "policy.horizon_s"),
        ('[store]\nurl = "mysql://x/y"\n', "mysql"),
    ],
)
def test_that_settings_with_which_no_daemon_could_run_are_refused(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    done = pollux("config", "check", "--config", str(file))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr


NUMBERS = sorted(
    f"{section}.{key.name}"
    for section, kind in typing.get_type_hints(Config).items()
    if dataclasses.is_dataclass(kind)
    for key in dataclasses.fields(kind)
    if "least" in key.metadata and "everyone" not in key.metadata
)


def test_that_every_number_has_bounds() -> None:
    for kind in typing.get_type_hints(Config).values():
        for key in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
            if str(key.type).split(" ")[0] in ("int", "float"):
                assert {"least", "most"} <= set(key.metadata), key.name


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1000", "1e300", "true", '"3"', "[1]", "{}"])
@pytest.mark.parametrize("name", NUMBERS)
def test_that_numbers_out_of_bounds_are_refused(file: Path, name: str, value: str) -> None:
    section, _, key = name.partition(".")
    file.write_text(f"[{section}]\n{key} = {value}\n")
    with pytest.raises(ConfigError, match=key):
        load_config({}, path=file)


def test_that_the_daemons_options_have_the_same_bounds(file: Path) -> None:
    config = load_config({}, path=file)
    assert daemon_settings(config, interval_s=5, shadow=False).config.interval_s == 5
    with pytest.raises(ConfigError, match="pause_ttl_s"):
        daemon_settings(config, interval_s=3600, shadow=False)


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

    monkeypatch.setattr("pollux_slurm.cli.site.config._SYSTEMD_PATH", str(tmp_path))
    assert f"\nExecStart={tmp_path}/opt/pollux daemon\n" in started_as(tmp_path / "opt").stdout
    odd = started_as(tmp_path / "o p")
    assert (odd.returncode, odd.stdout) == (2, "")
    assert "a unit cannot contain this path" in odd.stderr
    (tmp_path / "pollux").touch(mode=0o755)
    assert "\nExecStart=/usr/bin/env pollux daemon\n" in pollux("config", "unit").stdout
