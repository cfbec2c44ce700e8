"""Files that steer a job: only their owner may have written them, and only their owner may read them.

Whoever may write in a folder above a private one can rename that away and put another tree in its place, even
between a check and a read. So the file's folder is opened once, and checked as it was opened: links on the
way are fine, the folder itself must be its reader's own, and nobody else may write in it. The file is opened
in that folder, without following a link and without waiting for a FIFO, and checked in its turn.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from pollux_slurm.errors import PrivateFileError

# Beyond this, it is no file of ours: a reader is not to run out of memory.
_MOST_BYTES = 1 << 30


def read_private(file: Path, *, is_secret: bool = False) -> bytes:
    """Return what an own file contains, at most its first bytes.

    Raises `PrivateFileError` for one that others may have written, or read where it `is_secret`, and
    `OSError` for one that cannot be opened.
    """
    with _opened_folder(file) as folder:
        handle = os.open(file.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(f"{file} is a directory")
        if not stat.S_ISREG(status.st_mode):
            raise PrivateFileError(f"{file} is not a regular file")
        if status.st_uid != os.geteuid():
            raise PrivateFileError(f"{file} belongs to another user: remove it")
        if status.st_mode & (0o077 if is_secret else 0o022):
            may = "read or write" if is_secret else "write"
            raise PrivateFileError(
                f"others may {may} {file}; run: chmod go-{'rwx' if is_secret else 'w'} {file}"
            )
        return stream.read(_MOST_BYTES)


def write_private(file: Path, content: bytes, *, is_new: bool = False) -> None:
    """Write a file that only its owner can read, whole or not at all, and on the disk.

    Raises `PrivateFileError` where others may write in its folder, `FileExistsError` for one that `is_new`
    and exists, and `OSError`.
    """
    draft = file.name if is_new else f".{file.name}-{secrets.token_hex(8)}.tmp"
    with _opened_folder(file) as folder:
        # O_EXCL also refuses a link.
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            if not is_new:
                os.replace(draft, file.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)
            raise


@contextlib.contextmanager
def _opened_folder(file: Path) -> Iterator[int]:
    handle = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid():
            raise PrivateFileError(f"folder {file.parent} belongs to another user; use one of your own")
        if status.st_mode & 0o022:
            raise PrivateFileError(
                f"others may write in folder {file.parent}, which has files that steer a job; run: "
                f"chmod go-w {file.parent}"
            )
        yield handle
    finally:
        os.close(handle)
