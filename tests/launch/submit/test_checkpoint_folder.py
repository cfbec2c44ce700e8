"""The checkpoint directory of a job: where it is, who can enter it, what is left after a failure."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pollux_slurm.config import CheckpointsConfig
from pollux_slurm.errors import ConfigError, LaunchError
from pollux_slurm.launch.submit.checkpoint_folder import (
    checkpoint_budget,
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


def test_that_the_size_is_that_of_the_newest_checkpoint_in_the_folder(tmp_path: Path) -> None:
    files = tmp_path / "job" / "checkpoints"
    assert f"3 times the size of one in {tmp_path}/job, where " in checkpoint_budget(
        tmp_path / "job", num_kept=2
    )
    files.mkdir(parents=True)
    (files / f"000000-000002-{'a' * 64}.pt").write_bytes(bytes(5_000_000))
    (files / f"000000-000001-{'b' * 64}.pt").write_bytes(bytes(1000))
    told = checkpoint_budget(tmp_path / "job", num_kept=1)
    assert f"2 times the size of one (5.0 MB) in {tmp_path}/job, where " in told
    assert "are free" in told


def test_that_a_disk_without_room_for_another_checkpoint_is_told(tmp_path: Path) -> None:
    files = tmp_path / "checkpoints"
    files.mkdir()
    with (files / f"000000-000002-{'a' * 64}.pt").open("wb") as file:
        file.truncate(1 << 43)  # sparse: larger than the disk
    told = checkpoint_budget(tmp_path, num_kept=2)
    assert told.endswith("where there is no room for another one: without it the job cannot be moved")
