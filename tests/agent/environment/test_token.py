"""The job's token and its file."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from pollux_slurm.agent.environment.token import (
    ensure_token,
    new_token,
    read_token,
    token_sha256,
    token_user_id,
    write_token,
)
from pollux_slurm.errors import LaunchError

TOKEN = "1000-" + "0" * 64


def test_that_tokens_differ_and_hash_as_sha256() -> None:
    token = new_token(1000)
    assert len(token) == len("1000-") + 64
    assert token != new_token(1000)
    assert token_user_id(token) == 1000
    assert token_sha256(token) == hashlib.sha256(token.encode()).hexdigest()


def test_that_only_the_owner_can_read_a_token_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_token(tmp_path / "token", TOKEN)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert read_token(tmp_path / "token") == TOKEN


def test_that_a_token_never_overwrites_a_file_nor_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        write_token(tmp_path / "link", TOKEN)
    assert not (tmp_path / "target").exists()
    write_token(tmp_path / "token", TOKEN)
    with pytest.raises(FileExistsError):
        write_token(tmp_path / "token", new_token(1000))
    with pytest.raises(LaunchError, match="cannot be written: No such file"):
        write_token(tmp_path / "no" / "token", new_token(1000))


def test_that_a_requeued_job_finds_its_first_token(tmp_path: Path) -> None:
    first = ensure_token(tmp_path / "token", 1000)
    assert ensure_token(tmp_path / "token", 1000) == first


def test_that_a_token_of_another_user_is_refused(tmp_path: Path) -> None:
    ensure_token(tmp_path / "token", 1000)
    with pytest.raises(LaunchError, match="not that of user 1001"):
        ensure_token(tmp_path / "token", 1001)


@pytest.mark.parametrize(
    "content",
    [b"", b"too short", b"\xff" * 64, b"1-" + b"A" * 64, b"0" * 64, b"01-" + b"0" * 64, b"0" * 10_000],
)
def test_that_a_file_without_a_token_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(LaunchError, match="does not contain a token"):
        read_token(file)


def test_that_a_token_that_others_could_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    write_token(file, TOKEN)
    file.chmod(0o640)
    with pytest.raises(LaunchError, match="chmod go-rwx"):
        read_token(file)


def test_that_missing_files_links_and_pipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot be read"):
        read_token(tmp_path / "missing")
    write_token(tmp_path / "token", TOKEN)
    (tmp_path / "link").symlink_to(tmp_path / "token")
    with pytest.raises(LaunchError, match="cannot be read"):
        read_token(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(LaunchError, match="not a regular file"):
        read_token(tmp_path / "pipe")
