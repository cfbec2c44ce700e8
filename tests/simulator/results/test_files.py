"""Files of results, wherever they are to be written."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from pollux_slurm.errors import UsageError
from pollux_slurm.simulator.results.files import write_text


def test_that_a_file_is_written_atomically_without_leftovers(tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    file.write_text("before")
    write_text(file, "a\n")
    assert file.read_text() == "a\n"
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(UsageError, match="cannot write"):
        write_text(tmp_path / "nowhere" / "out.csv", "a\n")


def test_that_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    """As /dev/stdout is, and /dev/null a device: root would have replaced it by a file for everybody."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "a\n")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    reader.join(300)
    assert read == ["a\n"]


def test_that_a_link_stays_a_link(tmp_path: Path) -> None:
    kept, link = tmp_path / "kept.csv", tmp_path / "link.csv"
    kept.write_text("a longer text before\n")
    link.symlink_to(kept)
    write_text(link, "a\n")
    assert link.is_symlink()
    assert kept.read_text() == "a\n"
