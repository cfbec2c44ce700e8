"""A job's token: the secret with which its processes report to the store.

It is in one file beside the job's checkpoints that only the owner can read. Environment and command line,
which may appear in logs, contain only the file's path. Slurm's Comment contains the SHA-256 and the owner's
user id, with which the token begins.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from pollux_slurm.errors import LaunchError
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.system.private_files import read_private, write_private

_TOKEN = re.compile(r"(?:0|[1-9][0-9]{0,9})-[0-9a-f]{64}")
_MAX_BYTES = 200


def new_token(user_id: int) -> str:
    """Return a new token of a user: the user id and 256 random bits as 64 hex digits."""
    return f"{user_id}-{secrets.token_hex(32)}"


def token_user_id(token: str) -> int:
    """Return the user id in the token."""
    return int(token.partition("-")[0])


def token_sha256(token: str) -> str:
    """Return the hex digest for the job's Comment and the store."""
    return hash_token(token)


def write_token(file: Path, token: str) -> None:
    """Write `token` to a new file that only its owner can read.

    Raises `FileExistsError` when the file exists, and `LaunchError` when it cannot be written.
    """
    try:
        write_private(file, f"{token}\n".encode("ascii"), is_new=True, in_any_folder=True)
    except FileExistsError:
        raise
    except OSError as error:
        raise LaunchError(f"token file {file} cannot be written: {error.strerror}") from None


def read_token(file: Path) -> str:
    """Return the token in `file`.

    Raises `LaunchError` when it cannot be read, contains no token, belongs to another user, or can be read or
    written by others.
    """
    try:
        content = read_private(file, is_secret=True, in_any_folder=True)
    except OSError as error:
        raise LaunchError(f"token file {file} cannot be read: {error.strerror}") from None
    text = content[:_MAX_BYTES].decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(text):
        raise LaunchError(f"token file {file} does not contain a token")
    return text


def ensure_token(file: Path, user_id: int) -> str:
    """Return the token in `file`, which is created if missing; a requeued job has that of its first run.

    Raises `LaunchError` for another user's token.
    """
    token = new_token(user_id)
    try:
        write_token(file, token)
    except FileExistsError:
        token = read_token(file)
        if token_user_id(token) != user_id:
            raise LaunchError(
                f"token file {file} contains another user's token, not that of user {user_id}; remove it"
            ) from None
    return token
