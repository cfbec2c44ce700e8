"""A daemon of root obeys no settings, commands and templates that others may change, by real modes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from pollux_slurm.cli.site.doctor import examined
from pollux_slurm.config import load_config
from pollux_slurm.daemon.doctor.findings import Finding, Verdict
from pollux_slurm.daemon.service.steering_files import who_else_steers
from tests.cli.inside import pollux

_NOBODY = 65431


@pytest.fixture
def place() -> Iterator[Path]:
    """Settings, a command of Slurm and a template, in folders that all can enter."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files to others")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        place = Path(name).resolve()
        for folder in ("bin", "templates", "templates/page"):
            (place / folder).mkdir()
        for file in ("bin/scontrol", "bin/other", "templates/page/style.css.j2"):
            (place / file).touch(mode=0o755)
        (place / "pollux.toml").write_text(
            f'slurm.bin_dir = "{place}/bin"\ntemplates.dir = "{place}/templates"\n'
            f'daemon.metrics_listen = "off"\n[store]\nurl = "sqlite:////nowhere/pollux.db"\n'
        )
        for one in (place, *place.rglob("*")):
            one.chmod(0o755)
        yield place


def checked(place: Path) -> tuple[int, str]:
    done = pollux("config", "check", "--config", str(place / "pollux.toml"))
    return done.returncode, done.stderr


def settings_finding(place: Path) -> Finding:
    config = load_config({}, path=place / "pollux.toml")
    return next(iter(examined(config, lambda: datetime.now(timezone.utc))))


def test_that_what_only_root_may_change_is_accepted(place: Path) -> None:
    (place / "bin/other").chmod(0o777)  # no command of Slurm's
    assert checked(place) == (0, "")
    assert settings_finding(place).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("pollux.toml", "the settings"),
        ("", "the settings"),
        ("bin", "slurm.bin_dir"),
        ("bin/scontrol", "slurm.bin_dir"),
        ("templates", "templates.dir"),
        ("templates/page/style.css.j2", "templates.dir"),
    ],
)
def test_that_root_refuses_what_others_may_change(place: Path, name: str, setting: str) -> None:
    path = place / name
    path.chmod(0o777)
    code, said = checked(place)
    assert code == 2
    what = f"in {path}" if path.is_dir() else path
    assert said.startswith(f"pollux: {setting}: everybody may write {what}; ")
    path.chmod(0o755)
    os.chown(path, _NOBODY, 0)
    assert checked(place)[1].startswith(f"pollux: {setting}: {path} belongs to user {_NOBODY}; ")
    done = pollux("daemon", "--once", "--config", str(place / "pollux.toml"))
    assert (done.returncode, done.stderr) == (2, checked(place)[1])
    assert settings_finding(place).verdict is Verdict.FAIL


def test_that_another_user_is_told_and_not_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "bin").chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: _NOBODY)
    code, said = checked(place)
    assert (code, said.count("\n")) == (0, 1)
    assert f"slurm.bin_dir: everybody may write in {place / 'bin'}" in said
    finding = settings_finding(place)
    assert (finding.verdict, bool(finding.cure)) == (Verdict.WARN, True)


def test_that_a_link_counts_as_the_file_that_it_names_and_as_itself(place: Path) -> None:
    (place / "elsewhere").mkdir(mode=0o755)
    (place / "bin/scontrol").rename(place / "elsewhere/scontrol")
    (place / "bin/scontrol").symlink_to(place / "elsewhere/scontrol")
    config = load_config({}, path=place / "pollux.toml")
    assert who_else_steers(config) is None
    (place / "elsewhere").chmod(0o777)
    assert who_else_steers(config) == f"slurm.bin_dir: everybody may write in {place / 'elsewhere'}"
