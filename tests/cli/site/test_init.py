"""`pollux init`: its questions on a real terminal, its options, and what it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.cli.site import first_settings as first
from pollux_slurm.config import load_config
from pollux_slurm.errors import ConfigError, UsageError
from tests.cli.inside import pollux

NO_SLURM = first.Surroundings(cluster=None, one_host=True, is_root=False)
SPREAD = first.Surroundings(cluster="hpc", one_host=False, is_root=False)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, on a machine without Slurm."""
    for name in [name for name in os.environ if name.startswith(("POLLUX", "XDG", "SLURM"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "no-slurm.conf"))
    return tmp_path


def test_that_the_defaults_leave_settings_and_a_store_that_work(home: Path) -> None:
    done = pollux("init", "--yes", "--no-sandbox", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    made = json.loads(done.stdout)
    file = home / ".config" / "pollux" / "pollux.toml"
    assert (made["settings_file"], made["settings"]) == (str(file), file.read_text())
    assert file.stat().st_mode & 0o777 == 0o600
    assert pollux("config", "check").returncode == 0
    assert pollux("db", "check").stdout.startswith(f"sqlite:///{home}/.local/state/pollux/pollux.db is good")


def test_that_it_replaces_a_file_only_by_force(home: Path) -> None:
    assert pollux("init", "--yes", "--no-sandbox").returncode == 0
    file = home / ".config" / "pollux" / "pollux.toml"
    before = file.read_text()
    again = pollux("init", "--yes", "--no-sandbox", "--checkpoints", "~/ck")
    assert (again.returncode, again.stdout, file.read_text()) == (2, "", before)
    assert "--force" in again.stderr
    assert pollux("init", "--yes", "--no-sandbox", "--checkpoints", "~/ck", "--force").returncode == 0
    assert load_config(dict(os.environ)).checkpoints.root == "~/ck"


def test_that_a_dry_run_leaves_nothing(home: Path) -> None:
    done = pollux("init", "--yes", "--dry-run")
    assert done.returncode == 0
    assert f"would write {home}/.config/pollux/pollux.toml" in done.stdout
    assert list(home.iterdir()) == []


def test_that_without_a_terminal_it_names_the_options() -> None:
    with Path(os.devnull).open() as nothing, contextlib.ExitStack() as stack:
        stack.callback(setattr, sys, "stdin", sys.stdin)
        sys.stdin = nothing
        done = pollux("init")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert all(flag in done.stderr for flag in ("--for", "--store", "--checkpoints", "--live", "--yes"))


def test_that_it_asks_on_a_terminal_and_asks_a_wrong_answer_again(home: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "pollux_slurm", "init", "--no-sandbox", "--json"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        os.close(theirs)
        os.write(ours, f"nobody\nmachine\n{home}/a b.db\nrelative\n~/ck\n".encode())
        stdout, stderr = running.communicate(timeout=300)
    os.close(ours)
    assert running.returncode == 0, stderr
    assert "--for nobody: write machine, own or cluster" in stderr
    assert "relative: write a folder that begins with / or ~" in stderr
    made = json.loads(stdout)
    config = load_config({}, path=Path(made["settings_file"]))
    assert (config.store.url, config.checkpoints.root) == (f"sqlite:///{home}/a b.db", "~/ck")


def test_that_a_users_own_daemon_serves_its_own_jobs_at_once(home: Path) -> None:
    done = pollux("init", "--for", "own", "--yes", "--json")
    assert done.returncode == 0
    daemon = load_config(dict(os.environ)).daemon
    assert (daemon.jobs, daemon.shadow, daemon.metrics_listen) == ("own", False, "off")
    assert json.loads(done.stdout)["next"][0].startswith("pollux doctor")


@pytest.mark.skipif(os.geteuid() != 0, reason="the site's settings are written by root")
def test_that_a_clusters_file_is_readable_by_all_and_its_daemon_begins_in_shadow_mode(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No PostgreSQL answers at that port: the store is left to a superuser, with the command to type."""
    file, url = home / "site.toml", "postgresql://localhost:1/pollux"
    monkeypatch.setenv("POLLUX_CONFIG", str(file))
    done = pollux("init", "--for", "cluster", "--store", url, "--checkpoints=/scratch/%u", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["store_made"], file.stat().st_mode & 0o777) == (False, 0o644)
    assert made["next"][0].startswith("sudo -u postgres pollux db init --store postgresql:///pollux")
    assert "POLLUX_STORE_URL=postgresql://pollux@localhost:1/pollux pollux doctor" in made["next"][1]
    config = load_config(dict(os.environ))
    assert (config.daemon.jobs, config.daemon.shadow) == ("all", True)
    assert (config.store.url, config.checkpoints.root) == (url, "/scratch/%u")


@pytest.mark.parametrize(
    ("given", "users", "found", "words"),
    [
        ("/x/p.db", first.Users.CLUSTER, NO_SLURM, "one user on one host"),
        ("/x/p.db", first.Users.OWN, SPREAD, "this cluster has others"),
        ("postgresql://jobs:secret@db/pollux", first.Users.CLUSTER, SPREAD, "pgpass"),
        ("mysql://db/pollux", first.Users.OWN, SPREAD, "no store can be kept"),
    ],
)
def test_that_a_store_that_cannot_serve_is_refused(
    given: str, users: first.Users, found: first.Surroundings, words: str
) -> None:
    with pytest.raises((UsageError, ConfigError), match=words) as refused:
        first.store_url(given, users, found)
    assert "secret" not in str(refused.value)


def test_that_all_users_of_a_cluster_cannot_share_one_folder() -> None:
    with pytest.raises(UsageError, match="%u"):
        first.checkpoints_root("/scratch/ck", first.Users.CLUSTER)
    assert first.checkpoints_root("~/ck", first.Users.CLUSTER) == "~/ck"


def test_that_any_path_is_quoted_as_toml(home: Path) -> None:
    hostile = '/x/"]\n[slurm]\nbin_dir = \\"\x7f'
    text = first.settings_text(
        first.Answers(
            users=first.Users.MACHINE,
            store_url="sqlite:////x",
            checkpoints=hostile,
            shadow=False,
            starts_sandbox=False,
        )
    )
    first.write_settings(home / "pollux.toml", text, first.Users.MACHINE)
    config = load_config({}, path=home / "pollux.toml")
    assert (config.checkpoints.root, config.slurm.bin_dir) == (hostile, None)


@pytest.fixture
def short_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home with a short path: sockets must fit."""
    folder = Path(tempfile.mkdtemp(prefix="pollux-", dir="/tmp"))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SLURM_CONF")
    yield folder
    pollux("sandbox", "down")
    shutil.rmtree(folder)


def test_that_on_one_machine_it_starts_a_cluster_which_it_then_recognises(
    slurm_programs: None, short_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = pollux("init", "--for", "machine", "--yes", "--sandbox")
    assert done.returncode == 0, done.stderr
    assert 'eval "$(pollux sandbox env)"' in done.stdout
    for line in pollux("sandbox", "env").stdout.splitlines():
        name, _, value = line.removeprefix("export ").partition("=")
        monkeypatch.setenv(name, value.strip("'"))
    found = first.look_around(os.environ)
    assert (found.one_host, found.likely_users) == (True, first.Users.MACHINE)


def test_that_a_sandbox_that_is_asked_for_starts_beside_another_slurm(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = first.Surroundings(cluster="hpc", one_host=True, is_root=False)
    monkeypatch.setattr(first, "look_around", lambda environ: beside)
    command = ("init", "--for", "machine", "--yes", "--dry-run")
    assert "a private Slurm cluster" in pollux(*command, "--sandbox").stdout
    assert "a private Slurm cluster" not in pollux(*command).stdout


def test_that_a_sandboxs_jobs_move_in_place_and_its_rounds_are_near(home: Path) -> None:
    done = pollux("init", "--for", "machine", "--sandbox", "--yes", "--dry-run", "--json")
    (home / "shown.toml").write_text(json.loads(done.stdout)["settings"])
    config = load_config({}, path=home / "shown.toml")
    assert (config.daemon.interval_s, config.moves.in_place) == (10.0, True)
    assert config.moves.gpu_types_without_nvlink == ("t4",)
