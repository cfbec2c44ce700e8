"""The files of a job: which of them another user may have written, and how each kind is opened.

Whoever may write in a folder above a private one can rename that away and put another tree in its place, even
between a check and a read. So a file's folder is opened once. Links on the way to it are fine; a file that is
itself a link is not followed, and a FIFO is not waited for. There are two kinds:

- *Private* files steer a job: commands, secrets, exit codes, what its environment contains. Only their reader
  may have written them. Their folder, too, is its reader's own, and nobody else may write in it: else others
  could remove a file and so undo it. `in_any_folder` is for those that every job has: its folder may be one
  that a group shares, whose members can remove such a file, and cannot write one that is read.
- *Data* are what whoever may change a checkpoint may change: claims of runs, bounds of memory, errors of
  ranks. They are numbers, and text for a log.

Each is written under a random name that did not exist, and then renamed or linked: whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pollux_slurm.errors import PrivateFileError

# Beyond this, it is not a file of ours: a reader is not to run out of memory.
_MOST_BYTES = 1 << 30
_MOST_DATA_BYTES = 1 << 20
# What `link` fails with on a file system that has no hard links.
_WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_READS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# O_EXCL also refuses a link.
_CREATES = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_UPDATES = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def read_private(file: Path, *, is_secret: bool = False, in_any_folder: bool = False) -> bytes:
    """Return what an own file contains, at most its first bytes.

    Raises `PrivateFileError` for one that others may have written, or read where it `is_secret`, and
    `OSError` for one that cannot be opened.
    """
    with _opened_folder(file.parent, is_private=not in_any_folder) as folder:
        handle = os.open(file.name, _READS, dir_fd=folder)
    with os.fdopen(handle, "rb") as stream:
        _check_own(file, os.fstat(handle), is_secret=is_secret)
        return stream.read(_MOST_BYTES)


def write_private(
    file: Path, content: bytes, *, is_new: bool = False, in_any_folder: bool = False, is_synced: bool = True
) -> None:
    """Write a file that only its owner can read, whole or not at all, and on the disk unless not `is_synced`.

    Raises `PrivateFileError` where others may write in its folder, `FileExistsError` for one that `is_new`
    and exists, and `OSError`.
    """
    with (
        _opened_folder(file.parent, is_private=not in_any_folder) as folder,
        _draft(folder, f".{file.name}", mode=0o600) as draft,
    ):
        draft.write_as(file.name, content, is_new=is_new, is_synced=is_synced)


def open_private(file: Path) -> int:
    """Open an own file in any folder, to read it and to write in its place; created where there is none.

    Raises `PrivateFileError` for one that others may have written, and `OSError`.
    """
    with _opened_folder(file.parent, is_private=False) as folder:
        handle = os.open(file.name, _UPDATES, 0o600, dir_fd=folder)
    try:
        status = os.fstat(handle)
        _check_own(file, status, is_secret=False)
        if status.st_nlink != 1:
            raise PrivateFileError(f"{file} has other names, too: remove it")
    except BaseException:
        os.close(handle)
        raise
    return handle


def read_data(file: Path) -> bytes:
    """Return the first bytes of a file of data, whoever has written it. Raises `OSError`."""
    with _opened_folder(file.parent, is_private=False) as folder:
        handle = os.open(file.name, _READS, dir_fd=folder)
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(file))
        return stream.read(_MOST_DATA_BYTES)


def write_data(file: Path, content: bytes, *, is_new: bool = False, is_synced: bool = True) -> None:
    """Write a file of data, with the rights that the umask leaves. Raises as `write_private`."""
    with data_draft(file.parent, f".{file.name}") as draft:
        draft.write_as(file.name, content, is_new=is_new, is_synced=is_synced)


@contextlib.contextmanager
def data_draft(folder: Path, prefix: str) -> Iterator[Draft]:
    """Yield a new file of data in a folder; it is deleted after the block, unless kept. Raises `OSError`."""
    with _opened_folder(folder, is_private=False) as handle, _draft(handle, prefix, mode=0o666) as draft:
        yield draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A file that is written under a name of its own, in a folder that is open."""

    file: BinaryIO
    _name: str
    _folder: int

    def write_as(self, name: str, content: bytes, *, is_new: bool, is_synced: bool) -> None:
        """Write the whole content, and give the file its name."""
        self.file.write(content)
        if is_synced:
            self.sync()
        self.keep_as(name, is_new=is_new, is_synced=is_synced)

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def keep_as(self, name: str, *, is_new: bool = False, is_synced: bool = True) -> None:
        """Give the file its name, in place of another one; `FileExistsError` for that if it `is_new`.

        With `is_synced`, the name is on the disk, too, after `sync`.
        """
        self.file.flush()
        if is_new:
            self._take(name)
        else:
            os.replace(self._name, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        if is_synced:
            try:
                os.fsync(self._folder)
            except OSError as error:
                if error.errno != errno.EINVAL:  # a file system that cannot sync folders, as AFS
                    raise

    def _take(self, name: str) -> None:
        try:  # atomic on NFS, too
            os.link(self._name, name, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _WITHOUT_LINKS:
                raise
            os.close(os.open(name, _CREATES, 0o600, dir_fd=self._folder))
            os.replace(self._name, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)


@contextlib.contextmanager
def _draft(folder: int, prefix: str, *, mode: int) -> Iterator[Draft]:
    name = f"{prefix}-{secrets.token_hex(8)}.tmp"
    handle = os.open(name, _CREATES, mode, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            yield Draft(file=file, _name=name, _folder=folder)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)


def is_private_group(status: os.stat_result) -> bool:
    """Return whether the group is root's, or the owner's own: of the same name, without other members."""
    if status.st_gid == 0:
        return True
    try:
        group, owner = grp.getgrgid(status.st_gid), pwd.getpwuid(status.st_uid)
    except KeyError:
        return False
    return group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}


def _others_may_write(status: os.stat_result) -> bool:
    # With umask 002, each user's files are for a group of the user's own.
    of_group = status.st_mode & stat.S_IWGRP and not is_private_group(status)
    return bool(of_group or status.st_mode & stat.S_IWOTH)


def _check_own(file: Path, status: os.stat_result, *, is_secret: bool) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if not stat.S_ISREG(status.st_mode):
        raise PrivateFileError(f"{file} is not a regular file")
    if status.st_uid != os.geteuid():
        raise PrivateFileError(f"{file} belongs to another user: remove it")
    if (is_secret and status.st_mode & 0o077) or _others_may_write(status):
        may = "read or write" if is_secret else "write"
        raise PrivateFileError(f"others may {may} {file}; run: chmod go-{'rwx' if is_secret else 'w'} {file}")


@contextlib.contextmanager
def _opened_folder(folder: Path, *, is_private: bool) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if is_private and status.st_uid != os.geteuid():
            raise PrivateFileError(f"folder {folder} belongs to another user; use one of your own")
        if is_private and _others_may_write(status):
            raise PrivateFileError(
                f"others may write in folder {folder}, which has files that steer a job; run: "
                f"chmod go-w {folder}"
            )
        yield handle
    finally:
        os.close(handle)
