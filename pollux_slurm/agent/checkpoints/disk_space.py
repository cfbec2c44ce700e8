"""Whether another checkpoint fits on the disk, and into its owner's quota."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether `error` is that of a full disk, or of an exceeded quota."""
    return isinstance(error, OSError) and error.errno in _FULL


def has_room(directory: Path, num_bytes: int) -> bool:
    """Return whether `num_bytes` more can be written in `directory`.

    A file of that size is reserved and deleted, because the free space of a file system does not tell what a
    quota allows. Where the file system cannot reserve, its free space decides. True where nothing is known.
    """
    if num_bytes <= 0:
        return True
    file = directory / f".room-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return not is_disk_full(error)
    try:
        _reserve(fd, num_bytes)
        return True
    except OSError as error:
        return False if is_disk_full(error) else (free_bytes(directory) or num_bytes) >= num_bytes
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            file.unlink()


def free_bytes(directory: Path) -> int | None:
    """Return the free bytes of the file system of `directory`, which need not exist yet; None if unknown."""
    for place in (directory, *directory.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free
    return None


def _reserve(fd: int, num_bytes: int) -> None:
    """Call Linux's fallocate. `os.posix_fallocate` writes to each block where a file system lacks it."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if call is None:  # another C library than glibc
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if call(fd, 0, 0, num_bytes) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
