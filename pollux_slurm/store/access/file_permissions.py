"""Who may open an SQLite store: the processes of one host, run by one user or, if so configured, one group.

SQLite knows no users: whoever can write the file can write any row. Its locks and its shared memory hold on
one host only: two hosts with the file on a network file system damage it. So the host that made the store is
noted in the file's header (`user_version`), where a look needs no lock, and another is refused at once.
"""

from __future__ import annotations

import contextlib
import grp
import hashlib
import os
import pwd
import shlex
import socket
import sqlite3
import stat
from pathlib import Path
from urllib.parse import quote

from pollux_slurm.errors import StoreError, UsageError
from pollux_slurm.store.access.url import StoreUrl

_MACHINE_ID = Path("/etc/machine-id")


def host_mark(*, name: str | None = None, machine_id_file: Path = _MACHINE_ID) -> int:
    """Return a number from 1 that stands for this host: of its name and, where it has one, its machine id."""
    try:
        machine_id = machine_id_file.read_bytes().strip()
    except OSError:
        machine_id = b""
    words = (socket.gethostname() if name is None else name).encode() + b"\0" + machine_id
    return int.from_bytes(hashlib.sha256(words).digest()[:4], "big") % (2**31 - 1) + 1


def check_trust(url: StoreUrl, path: Path, *, any_host: bool = False) -> None:
    """Raise `StoreError`, with what to do, unless this process may use the store's file, which exists."""
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o007 and _look(path) is not None:
        raise StoreError(
            f"{path} may be opened by everybody on this host, and whoever can write it can write every job's "
            f"rows; run: chmod o-rwx {shlex.quote(str(path))}"
        )
    me = os.geteuid()
    if me not in (0, status.st_uid):
        shared = mode & 0o060 == 0o060 and status.st_gid in (os.getegid(), *os.getgroups())
        if not shared:
            raise StoreError(
                f"{path} belongs to {_user(status.st_uid)}, and you are {_user(me)}: an SQLite store is one "
                "user's, or a group's that its owner names (pollux db share GROUP); "
                + _use_postgresql("users")
            )
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreError(f"this user may not read and write {path}; its owner can run: chmod 600 {path}")
    mark = read_mark(path)
    if not any_host and mark not in (0, host_mark()):
        raise StoreError(
            f"the store {url} belongs to another host, and SQLite serves one; {_use_postgresql('hosts')}. "
            f"If the file was moved here for good, or this host has a new name: {url.command('claim')}"
        )


def read_mark(path: Path) -> int:
    """Return the mark of the host that a store's file belongs to, 0 if it bears none (yet)."""
    return _look(path) or 0


def _look(path: Path) -> int | None:
    """Return the mark in a file's header, 0 if it is empty, None if it is none of SQLite's.

    SQLite itself opens it, without a lock. Were it opened here, closing it would take away all locks that
    other connections of this process hold on it (POSIX), and the next process to leave would delete the
    write-ahead log under them.
    """
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
        ) as connection:
            (mark,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError:
        return None
    return int(mark)


def share_with_group(url: StoreUrl, path: Path, group: str) -> None:
    """Let the members of `group` open the store: mode 0660 and the group's, in a folder where it may write.

    Raises `UsageError` for a group that is none, and `StoreError` for a folder that the group cannot use.
    """
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        raise UsageError(f"there is no group {group!r} on this host") from None
    folder = path.parent.stat()
    if folder.st_gid != number or folder.st_mode & 0o2070 != 0o2070:
        place = shlex.quote(str(path.parent))
        raise StoreError(
            f"SQLite makes files beside {path}, so its folder must be the group's, too; run: "
            f"chgrp {shlex.quote(group)} {place} && chmod g+rwxs {place}"
        )
    try:
        for file in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
            if file.exists():
                os.chown(file, -1, number)
                file.chmod(0o660)
    except OSError as error:
        raise StoreError(f"{url} cannot be given to group {group}: {error.strerror}; ask its owner") from None


def _use_postgresql(several: str) -> str:
    return f"for several {several} use PostgreSQL: POLLUX_STORE_URL=postgresql://HOST/pollux (docs/admin.md)"


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"
