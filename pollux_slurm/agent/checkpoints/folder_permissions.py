"""Who else may change what lies in a folder of checkpoints.

A checkpoint's name holds its checksum, which whoever puts another file there can compute as well: a run goes
on from what those who may write there want it to.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from pathlib import Path

_PARTS = ("checkpoints", "runs", "")


def who_else_may_write(folder: Path, *, is_parent_folder: bool = False) -> str | None:
    """Return who but this user and root may change what lies in `folder`, or put another one in its place.

    None for nobody. With `is_parent_folder`, what lies there are folders of other users, as in /tmp. Access
    control lists show only as far as the group's bits in a mode tell of them.
    """
    inner = [] if is_parent_folder else [folder / name for name in _PARTS]
    outer = [folder, *folder.parents] if is_parent_folder else [*folder.parents]
    found: str | None = None
    for path in (*inner, *outer):
        with contextlib.suppress(OSError):
            status = path.stat()
            if not status.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
                found = None  # nobody else comes further than this
            # Where the sticky bit is set, only its owner can rename or remove what lies in a folder.
            elif path in inner or not status.st_mode & stat.S_ISVTX:
                found = found or _writers(path, status)
            if status.st_uid not in (0, os.geteuid()):
                found = found or f"{path} belongs to {_user(status.st_uid)}"
    return found


def _writers(path: Path, status: os.stat_result) -> str | None:
    if status.st_mode & stat.S_IWOTH:
        return f"everybody may write in {path}"
    if status.st_mode & stat.S_IWGRP and not _is_private(status):
        return f"the members of group {_group(status.st_gid)} may write in {path}"
    return None


def _is_private(status: os.stat_result) -> bool:
    """Whether a folder's group is its owner's own, as distributions make one for each user, or root's."""
    if status.st_gid == 0:
        return True
    try:
        group, owner = grp.getgrgid(status.st_gid), pwd.getpwuid(status.st_uid)
    except KeyError:
        return False
    return group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}


def _user(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"user {user_id}"


def _group(group_id: int) -> str:
    try:
        return grp.getgrgid(group_id).gr_name
    except KeyError:
        return str(group_id)
