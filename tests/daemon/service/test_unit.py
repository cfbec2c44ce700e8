"""The systemd unit: checked by systemd itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pollux_slurm.resources import resource_dir

UNIT = "pollux-daemon.service"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze on this machine")
    copy = tmp_path / UNIT
    shutil.copy(resource_dir("templates") / UNIT, copy)
    return copy


def analyzed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=300, check=False
    )


def test_that_systemd_finds_nothing_wrong_with_the_unit(unit: Path) -> None:
    done = analyzed("verify", "--man=no", str(unit))
    about_us = [line for line in (done.stdout + done.stderr).splitlines() if UNIT in line]
    assert about_us == []


def test_that_the_unit_is_little_exposed(unit: Path) -> None:
    done = analyzed("security", "--offline=true", "--no-pager", str(unit))
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout[-500:] + done.stderr
    assert float(found[1]) <= 2.5
