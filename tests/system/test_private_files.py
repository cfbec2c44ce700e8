"""Files that steer a job: another user's is never read, whatever is renamed meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pollux_slurm.errors import PrivateFileError
from pollux_slurm.system.private_files import (
    data_draft,
    open_private,
    read_data,
    read_private,
    write_data,
    write_private,
)
from tests.waiting import ends_within

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "job"
    found.mkdir(mode=0o700)
    return found


def give_away(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def share(path: Path, mode: int) -> None:
    """Give a path to a group that has others in it."""
    os.chown(path, -1, NOBODY)
    path.chmod(mode)


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


@pytest.mark.parametrize("write", [write_private, write_data])
def test_that_a_file_system_without_hard_links_is_enough(
    folder: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]
) -> None:
    def link(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", link)
    write(folder / "one", b"first", is_new=True)
    with pytest.raises(FileExistsError):
        write(folder / "one", b"second", is_new=True)
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("one", b"first")]


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
        pytest.param(lambda file: share(file, 0o620), PrivateFileError, marks=needs_root),
        (lambda file: file.chmod(0o602), PrivateFileError),
        pytest.param(lambda file: share(file.parent, 0o770), PrivateFileError, marks=needs_root),
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
    with pytest.raises(error), ends_within(60, what="reading a FIFO"):
        read_private(file)


def test_that_a_secret_that_others_may_read_is_not_used(folder: Path) -> None:
    write_private(folder / "one", b"mine")
    (folder / "one").chmod(0o640)
    assert read_private(folder / "one") == b"mine"
    with pytest.raises(PrivateFileError, match="chmod go-rwx"):
        read_private(folder / "one", is_secret=True)


@needs_root
def test_that_a_group_of_ones_own_is_nobody_else(folder: Path) -> None:
    """As umask 002 leaves it."""
    write_private(folder / "one", b"mine")
    folder.chmod(0o775)
    (folder / "one").chmod(0o664)
    assert read_private(folder / "one") == b"mine"
    write_private(folder / "one", b"more")
    assert read_private(folder / "one", is_secret=True) == b"more"


@needs_root
def test_that_nothing_is_written_where_others_may_write(folder: Path) -> None:
    share(folder, 0o2775)
    with pytest.raises(PrivateFileError, match=r"run: chmod go-w "):
        write_private(folder / "one", b"mine")
    assert list(folder.iterdir()) == []


@needs_root
def test_that_in_any_folder_the_file_alone_counts(folder: Path) -> None:
    share(folder, 0o2775)
    write_private(folder / "one", b"mine", is_new=True, in_any_folder=True)
    assert read_private(folder / "one", is_secret=True, in_any_folder=True) == b"mine"
    with pytest.raises(PrivateFileError, match=r"run: chmod go-w "):
        read_private(folder / "one")
    share(folder / "one", 0o620)
    with pytest.raises(PrivateFileError, match=r"run: chmod go-w "):
        read_private(folder / "one", in_any_folder=True)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_that_a_folder_that_cannot_be_synced_has_files_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """EINVAL is what AFS answers; any other error is one of the disk."""
    sync = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with (
        contextlib.nullcontext() if code == errno.EINVAL else pytest.raises(OSError, match=os.strerror(code))
    ):
        write_private(folder / "one", b"mine")
    assert read_private(folder / "one", is_secret=True) == b"mine"


def test_that_an_open_file_is_an_own_one_with_one_name(folder: Path) -> None:
    folder.chmod(0o2775)
    for _ in range(2):
        handle = open_private(folder / "one")
        os.pwrite(handle, b"mine", 0)
        os.close(handle)
    assert read_private(folder / "one", is_secret=True, in_any_folder=True) == b"mine"
    (folder / "other").hardlink_to(folder / "one")
    with pytest.raises(PrivateFileError, match="has other names"):
        open_private(folder / "one")
    for change in (as_link, as_fifo):
        write_private(folder / "two", b"mine", in_any_folder=True)
        change(folder / "two")
        with pytest.raises((PrivateFileError, OSError)):
            open_private(folder / "two")


def test_that_data_is_anybodys_and_neither_link_nor_fifo(folder: Path) -> None:
    folder.chmod(0o2775)
    before = os.umask(0o002)
    try:
        write_data(folder / "one", b"first")
        write_data(folder / "one", b"second", is_synced=False)
    finally:
        os.umask(before)
    assert (folder / "one").stat().st_mode & 0o777 == 0o664
    if os.geteuid() == 0:
        give_away(folder / "one")
    assert read_data(folder / "one") == b"second"
    with pytest.raises(FileExistsError):
        write_data(folder / "one", b"third", is_new=True)
    assert [path.name for path in folder.iterdir()] == ["one"]
    write_data(folder / "big", bytes(3 << 20))
    assert len(read_data(folder / "big")) == 1 << 20
    for change in (as_link, as_fifo):
        write_data(folder / "two", b"mine")
        change(folder / "two")
        with pytest.raises(OSError, match="two"), ends_within(60, what="reading a FIFO"):
            read_data(folder / "two")


def test_that_a_link_in_the_way_is_replaced_and_its_target_stays(folder: Path) -> None:
    (folder / "secret").write_bytes(b"mine")
    for write in (write_private, write_data):
        (folder / "one").unlink(missing_ok=True)
        (folder / "one").symlink_to("secret")
        with pytest.raises(FileExistsError):
            write(folder / "one", b"new", is_new=True)
        write(folder / "one", b"new")
        assert not (folder / "one").is_symlink()
        assert (folder / "secret").read_bytes() == b"mine"


def test_that_a_draft_is_written_bit_by_bit_and_deleted_unless_kept(folder: Path) -> None:
    with data_draft(folder, ".one") as draft:
        for _ in range(3):
            draft.file.write(b"ab")
        draft.keep_as("one")
    with data_draft(folder, ".one") as draft:
        draft.file.write(b"half")
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("one", b"ababab")]


def test_that_no_file_keeps_a_draft_of_the_same_name_from_being_written(folder: Path) -> None:
    """Another writer may be at it; a name that can be guessed may be taken on purpose."""
    with data_draft(folder, ".one"):
        write_data(folder / "one", b"data")
        write_private(folder / "one", b"mine")
    assert (folder / "one").read_bytes() == b"mine"


def test_that_a_file_is_of_the_folder_that_was_checked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write in the folder above exchanges it for another of this user's, after the check."""
    write_private(folder / "one", b"mine")
    other, away = tmp_path / "other", tmp_path / "away"
    other.mkdir(mode=0o777)
    (other / "one").write_bytes(b"put there by others")
    fstat = os.fstat

    def exchange(handle: int) -> os.stat_result:
        status = fstat(handle)
        if other.exists():
            folder.rename(away)
            other.rename(folder)
        return status

    monkeypatch.setattr(os, "fstat", exchange)
    assert read_private(folder / "one") == b"mine"
    assert not other.exists(), "it was exchanged"
    folder.rename(other)
    away.rename(folder)
    write_private(folder / "two", b"mine")
    assert [path.name for path in folder.iterdir()] == ["one"]


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
    assert b"theirs" not in found
    assert read_private(folder / "one") == b"mine", "it is back in its place, and is read there"
