"""Other users who may write in a checkpoint folder, by real owners and modes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.agent.checkpoints.folder_permissions import who_else_may_write


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder that others can enter, below one of root's; only its user can enter pytest's own."""
    if os.geteuid() != 0:
        pytest.skip("only root can give folders to others")
    place = Path("/var/tmp") / f"pollux-{tmp_path.name}-{os.getpid()}"
    for name in ("", "up", "up/job", "up/job/runs", "up/job/checkpoints"):
        (place / name).mkdir()
        (place / name).chmod(0o755)
    yield place
    for name in ("up/job/checkpoints", "up/job/runs", "up/job", "up", ""):
        (place / name).rmdir()


def test_that_nobody_else_writes_where_only_the_owner_may(place: Path) -> None:
    assert who_else_may_write(place / "up/job") is None


@pytest.mark.parametrize("name", ["up", "up/job", "up/job/runs", "up/job/checkpoints"])
def test_that_a_group_that_may_write_in_any_of_the_folders_is_named(place: Path, name: str) -> None:
    os.chown(place / name, 0, 65432)
    (place / name).chmod(0o775)
    assert who_else_may_write(place / "up/job") == f"the members of group 65432 may write in {place / name}"
    (place / name).chmod(0o777)
    assert who_else_may_write(place / "up/job") == f"everybody may write in {place / name}"


def test_that_a_sticky_parent_is_safe_and_a_sticky_job_folder_is_not(place: Path) -> None:
    (place / "up").chmod(0o1777)
    assert who_else_may_write(place / "up/job") is None
    (place / "up/job").chmod(0o1777)
    assert who_else_may_write(place / "up/job") == f"everybody may write in {place / 'up/job'}"
    assert who_else_may_write(place / "up/job", is_parent_folder=True) is None


def test_that_another_users_folder_is_named(place: Path) -> None:
    os.chown(place / "up", 65431, 0)
    assert who_else_may_write(place / "up/job") == f"{place / 'up'} belongs to user 65431"


def test_that_folders_below_one_that_others_cannot_enter_are_safe(place: Path) -> None:
    (place / "up/job/checkpoints").chmod(0o777)
    (place / "up").chmod(0o700)
    assert who_else_may_write(place / "up/job") is None
    (place / "up").chmod(0o2770)
    os.chown(place / "up", 0, 65432)
    assert who_else_may_write(place / "up/job") is not None


def test_that_a_users_private_group_is_safe(place: Path) -> None:
    (place / "up/job").chmod(0o775)
    assert who_else_may_write(place / "up/job") is None


def test_that_missing_folders_are_ignored(place: Path) -> None:
    assert who_else_may_write(place / "up/new") is None
