"""Files that steer a job: another user's is never read, whatever is renamed meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pollux_slurm.agent.private_files import read_private, write_private
from pollux_slurm.errors import PrivateFileError

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "job"
    found.mkdir(mode=0o700)
    return found


def give_away(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def test_that_a_file_is_read_as_it_was_written_and_replaced_whole(folder: Path) -> None:
    write_private(folder / "one", b"first")
    write_private(folder / "one", b"second")
    assert read_private(folder / "one", is_secret=True) == b"second"
    assert (folder / "one").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folder.iterdir()] == ["one"]
    with pytest.raises(FileExistsError):
        write_private(folder / "one", b"third", is_new=True)
    write_private(folder / "two", b"new", is_new=True)
    assert (read_private(folder / "one"), read_private(folder / "two")) == (b"second", b"new")


def test_that_links_on_the_way_and_a_readable_folder_are_accepted(folder: Path, tmp_path: Path) -> None:
    write_private(folder / "one", b"mine")
    (tmp_path / "link").symlink_to(folder)
    folder.chmod(0o755)
    (folder / "one").chmod(0o644)
    assert read_private(tmp_path / "link" / "one") == b"mine"


def test_that_a_missing_file_is_told_apart(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_private(folder / "none")


def as_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def as_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (as_link, OSError),
        (as_fifo, PrivateFileError),
        (lambda file: file.chmod(0o620), PrivateFileError),
        (lambda file: file.chmod(0o602), PrivateFileError),
        (lambda file: file.parent.chmod(0o770), PrivateFileError),
        (lambda file: file.parent.chmod(0o1777), PrivateFileError),
        pytest.param(give_away, PrivateFileError, marks=needs_root),
        pytest.param(lambda file: give_away(file.parent), PrivateFileError, marks=needs_root),
    ],
)
def test_that_what_others_may_have_written_is_not_read(
    folder: Path, change: Callable[[Path], None], error: type[Exception]
) -> None:
    file = folder / "one"
    write_private(file, b"mine")
    change(file)
    with pytest.raises(error):
        read_private(file)


def test_that_a_secret_that_others_may_read_is_not_used(folder: Path) -> None:
    write_private(folder / "one", b"mine")
    (folder / "one").chmod(0o640)
    assert read_private(folder / "one") == b"mine"
    with pytest.raises(PrivateFileError, match="chmod go-rwx"):
        read_private(folder / "one", is_secret=True)


def test_that_nothing_is_written_where_others_may_write(folder: Path) -> None:
    folder.chmod(0o2775)
    with pytest.raises(PrivateFileError, match=r"run: chmod go-w "):
        write_private(folder / "one", b"mine")
    assert list(folder.iterdir()) == []


@needs_root
def test_that_a_tree_that_changes_places_all_along_is_never_read(folder: Path, tmp_path: Path) -> None:
    """Who may write in the folder above exchanges the private folder for one of their own."""
    write_private(folder / "one", b"mine")
    theirs, away = tmp_path / "theirs", tmp_path / "away"
    theirs.mkdir()
    (theirs / "one").write_bytes(b"theirs")
    for path in (theirs, theirs / "one"):
        give_away(path)
    is_over = threading.Event()

    def exchange() -> None:
        while not is_over.is_set():
            folder.rename(away)
            theirs.rename(folder)
            folder.rename(theirs)
            away.rename(folder)

    attacker = threading.Thread(target=exchange)
    attacker.start()
    found = []
    try:
        for _ in range(3000):
            try:
                found.append(read_private(folder / "one"))
            except (PrivateFileError, OSError) as error:
                found.append(type(error).__name__.encode())
    finally:
        is_over.set()
        attacker.join(60)
    assert b"mine" in found
    assert b"theirs" not in found
