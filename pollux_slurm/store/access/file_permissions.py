"""Who may open an SQLite store: the processes of one host, of one user or, if configured, of one group.

SQLite has no users: whoever can write the file can write any row. Its locks and shared memory work on one
host only: two hosts that share the file on a network file system damage it. So the file's header has the id
of the host that made the store (`user_version`), which can be read without a lock, and other hosts are
refused.
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


def host_id(*, name: str | None = None, machine_id_file: Path = _MACHINE_ID) -> int:
    """Return a number above 0 that identifies this host, from its name and its machine id, if any."""
    try:
        machine_id = machine_id_file.read_bytes().strip()
    except OSError:
        machine_id = b""
    text = (socket.gethostname() if name is None else name).encode() + b"\0" + machine_id
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") % (2**31 - 1) + 1


def check_access(url: StoreUrl, path: Path, *, any_host: bool = False) -> None:
    """Raise `StoreError`, with what to do, unless this process may use the existing file of the store."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(
            f"{path} is not a file: an SQLite store is one; name another"
        )  # a FIFO waits for ever
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o007 and _read_user_version(path) is not None:
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
    owner_id = read_host_id(path)
    if not any_host and owner_id not in (0, host_id()):
        raise StoreError(
            f"the store {url} belongs to another host, and SQLite serves one; {_use_postgresql('hosts')}. "
            f"If the file was moved here for good, or this host has a new name: {url.command('claim')}"
        )


def read_host_id(path: Path) -> int:
    """Return the id of the host that a store's file belongs to, 0 if it has none."""
    return _read_user_version(path) or 0


def _read_user_version(path: Path) -> int | None:
    """Return the host id in a file's header, 0 if the file is empty, None if it is not an SQLite database.

    SQLite opens it, without a lock. This process must not open and close the file itself. By POSIX, that
    would release all locks that its other connections have on the file. The next process to close the file
    would then delete the write-ahead log that they use.
    """
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
        ) as connection:
            (owner_id,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError:
        return None
    return int(owner_id)


def owner_whom_root_reads(path: Path) -> str | None:
    """Return the name of the user whose file it is, where this is root and the user is not; else None.

    What such a file makes SQLite do is theirs to choose: views without end, locks that are never released.
    """
    if os.geteuid() != 0:
        return None
    owner_id = path.stat().st_uid
    return None if owner_id == 0 else _user(owner_id)


def share_with_group(url: StoreUrl, path: Path, group: str) -> None:
    """Let the members of `group` open the store: mode 0660, in a folder where the group may write.

    Raises `UsageError` for an unknown group, and `StoreError` for a folder that the group cannot use.
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
    url = "POLLUX_STORE_URL=postgresql://HOST/pollux"
    return f"for several {several} use PostgreSQL: {url} (docs/postgresql.md)"


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"
