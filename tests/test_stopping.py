"""`tests/stopping.py`: a process that writes to a file is stopped between two writes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

from tests.stopping import may_write, stop_between_writes

# Holds the lock for nine tenths of its time.
WRITER = """
import sqlite3, sys, time
store = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
print("opened", flush=True)
while True:
    store.execute("BEGIN IMMEDIATE")
    time.sleep(0.09)
    store.execute("COMMIT")
    time.sleep(0.01)
"""


def test_that_a_stopped_process_does_not_hold_the_lock(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    sqlite3.connect(file).close()
    with subprocess.Popen([sys.executable, "-c", WRITER, file], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"opened\n"
            for _ in range(5):
                stop_between_writes(writer.send_signal, file)
                assert may_write(file)
        finally:
            writer.kill()


def test_that_a_locked_or_missing_file_may_not_be_written(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    assert not may_write(file)
    assert not file.exists()
    other = sqlite3.connect(file, isolation_level=None)
    assert may_write(file)
    other.execute("BEGIN IMMEDIATE")
    assert not may_write(file)
    other.close()
