"""The checkpoint directory of a job: where it is, who can enter it, what is left after a failure."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pollux_slurm.config import CheckpointsConfig
from pollux_slurm.errors import ConfigError, LaunchError
from pollux_slurm.launch.submit.checkpoint_folder import (
    checkpoints_folder,
    make_private_dir,
    remove_empty_dirs,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_that_only_the_owner_can_enter_a_new_folder_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    before = os.umask(0)
    try:
        made = make_private_dir(folder)
    finally:
        os.umask(before)
    assert made == [folder, tmp_path / "a"]
    assert mode(folder) == 0o700


def test_that_an_existing_folder_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    assert make_private_dir(tmp_path) == []
    assert mode(tmp_path) == 0o750


def test_that_created_folders_are_removed_again_unless_they_contain_something(tmp_path: Path) -> None:
    made = make_private_dir(tmp_path / "a" / "b")
    (tmp_path / "a" / "other").touch()
    remove_empty_dirs(made)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "other"]


def test_that_a_file_in_place_of_the_folder_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="--checkpoint-dir"):
        make_private_dir(tmp_path / "file")
    with pytest.raises(LaunchError, match="--checkpoint-dir"):
        make_private_dir(tmp_path / "file" / "below")


def test_that_checkpoints_go_where_the_settings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("LOGNAME", "ada")
    expected = {
        None: tmp_path / "pollux-checkpoints",
        "/scratch/%u/ck": Path("/scratch/ada/ck"),
        "~/ck": Path("/home/ada/ck"),
        "ck": tmp_path / "ck",
    }
    for named, folder in expected.items():
        assert checkpoints_folder(CheckpointsConfig(root=named), tmp_path) == folder
    with pytest.raises(ConfigError, match=r"checkpoints\.root ~nobody-here/ck"):
        checkpoints_folder(CheckpointsConfig(root="~nobody-here/ck"), tmp_path)
