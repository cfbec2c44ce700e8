"""A job's token: the secret with which it speaks to the store.

It lives in one file beside the job's checkpoints that only the owner can read; environment and command line,
which may be printed to logs, carry the file's path. Slurm's Comment carries the SHA-256 and the
owner's user id, with which the token begins.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from pathlib import Path

from pollux_slurm.errors import LaunchError
from pollux_slurm.store.agent_api.token_hashes import hash_token

CHECKPOINTS_FOLDER = "pollux-checkpoints"
"""The folder beside a submission where jobs keep their checkpoints and token unless told otherwise."""

_TOKEN = re.compile(r"(?:0|[1-9][0-9]{0,9})-[0-9a-f]{64}")
_MAX_FILE_BYTES = 200


def new_token(user_id: int) -> str:
    """Return a fresh token of a user's: their id and 256 random bits as 64 hex digits."""
    return f"{user_id}-{secrets.token_hex(32)}"


def token_user_id(token: str) -> int:
    """Return whose token it is."""
    return int(token.partition("-")[0])


def token_sha256(token: str) -> str:
    """Return the hex digest that may be shown: in the job's Comment and in the store."""
    return hash_token(token)


def make_private_dir(folder: Path) -> list[Path]:
    """Create `folder`, readable by its owner only, and what is missing above it.

    Returns what was created, the deepest first, so that a caller who fails later can remove it again. An
    existing folder keeps its mode: sharing it with a group is the owner's business.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    made: list[Path] = []
    try:
        for path in reversed(missing):
            path.mkdir(mode=0o700 if path == folder else 0o777, exist_ok=True)
            made.insert(0, path)
    except OSError as error:
        remove_empty_dirs(made)
        raise LaunchError(
            f"checkpoint directory {folder} cannot be made: {error.strerror}; name another one with "
            "--checkpoint-dir, on a file system that all nodes see"
        ) from None
    if not folder.is_dir():
        raise LaunchError(f"checkpoint directory {folder} is not a directory; name another --checkpoint-dir")
    return made


def remove_empty_dirs(folders: list[Path]) -> None:
    """Remove what `make_private_dir` made, as far as nothing was put there since."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def write_token(file: Path, token: str) -> None:
    """Keep `token` in a new file that only its owner can read.

    Raises `FileExistsError` when the file is there already, and `LaunchError` when it cannot be written.
    """
    try:
        # O_EXCL also refuses a symbolic link that somebody laid there.
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise
    except OSError as error:
        raise LaunchError(f"token file {file} cannot be made: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="ascii") as stream:
            stream.write(token + "\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        file.unlink(missing_ok=True)
        raise LaunchError(f"token file {file} cannot be written: {error.strerror}") from None


def read_token(file: Path) -> str:
    """Return the token kept in `file`.

    Raises `LaunchError` when it cannot be read, holds no token, or when someone else owns it or could have
    read or written it.
    """
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise LaunchError(f"token file {file} cannot be read: {error.strerror}") from None
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise LaunchError(f"token file {file} is not a regular file")
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise LaunchError(
                f"token file {file} must belong to you and be readable by nobody else; run: chmod 600 {file}"
            )
        text = stream.read(_MAX_FILE_BYTES).decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(text):
        raise LaunchError(f"token file {file} does not hold a token")
    return text


def ensure_token(file: Path, user_id: int) -> str:
    """Return the user's token kept in `file`, made now if there is none (a requeued job has its first run's).

    Raises `LaunchError` for one that was made for another user.
    """
    token = new_token(user_id)
    try:
        write_token(file, token)
    except FileExistsError:
        token = read_token(file)
        if token_user_id(token) != user_id:
            raise LaunchError(f"token file {file} is not of user {user_id}; remove it") from None
    return token
