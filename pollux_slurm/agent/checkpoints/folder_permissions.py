"""Which other users may change the files of a checkpoint folder, or a file that a process trusts.

Whoever may write in a checkpoint folder decides what a run resumes from. The checksum in a checkpoint's name
does not protect against that: it can be computed for any file.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Sequence
from pathlib import Path

from pollux_slurm.system.private_files import is_private_group

_PARTS = ("checkpoints", "runs", "")


def who_else_may_write(folder: Path, *, is_parent_folder: bool = False) -> str | None:
    """Return who, other than this user and root, may change files in `folder` or replace it; None for nobody.

    With `is_parent_folder`, `folder` contains the folders of several users, as /tmp does. Access control
    lists are seen only as far as they show in the group bits of the mode.
    """
    inner = [] if is_parent_folder else [folder / name for name in _PARTS]
    outer = [folder, *folder.parents] if is_parent_folder else [*folder.parents]
    return _who_may_write(inner, outer)


def who_else_may_change(file: Path) -> str | None:
    """Return who, other than this user and root, may change or replace a file or folder; None for nobody.

    A link is followed, and whoever may replace the link itself counts as well.
    """
    names = dict.fromkeys((file.absolute(), file.resolve()))
    return next(filter(None, (_who_may_write([name], name.parents) for name in names)), None)


def _who_may_write(inner: Sequence[Path], outer: Sequence[Path]) -> str | None:
    """Look from the inside out; those on the outside may have a sticky bit."""
    found: str | None = None
    for path in (*inner, *outer):
        with contextlib.suppress(OSError):
            status = path.stat()
            if stat.S_ISDIR(status.st_mode) and not status.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
                found = None  # other users cannot enter here, so they do not reach what is below
            # With the sticky bit, only an entry's owner can rename or remove it.
            elif path in inner or not status.st_mode & stat.S_ISVTX:
                found = found or _writers(path, status)
            if status.st_uid not in (0, os.geteuid()):
                found = found or f"{path} belongs to {_user(status.st_uid)}"
    return found


def _writers(path: Path, status: os.stat_result) -> str | None:
    what = f"in {path}" if stat.S_ISDIR(status.st_mode) else str(path)
    if status.st_mode & stat.S_IWOTH:
        return f"everybody may write {what}"
    if status.st_mode & stat.S_IWGRP and not is_private_group(status):
        return f"the members of group {_group(status.st_gid)} may write {what}"
    return None


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
