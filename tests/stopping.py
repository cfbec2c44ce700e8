"""Stop processes between their writes to SQLite.

Who is stopped in the midst of one keeps the file's one lock, and nobody else writes until it goes on.
"""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

from tests.waiting import wait_until


def stop_between_writes(send: Callable[[int], object], store: Path) -> None:
    """`send` SIGSTOP to a writer of a store; where its file stays locked, SIGCONT, and again."""

    def stop() -> bool:
        send(signal.SIGSTOP)
        if may_write(store):
            return True
        send(signal.SIGCONT)
        return False

    wait_until(stop, timeout_s=300, what=f"nobody to write to {store}")


def may_write(store: Path) -> bool:
    """Tell whether the file exists and nobody has locked it."""
    file = f"file:{store}?mode=rw"
    try:
        with contextlib.closing(sqlite3.connect(file, uri=True, timeout=0.5, isolation_level=None)) as opened:
            opened.execute("BEGIN IMMEDIATE")
            opened.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    return True
