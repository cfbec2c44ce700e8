"""Make the engine of each backend: pragmas, timeouts, and connections that survive a fork."""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, Pool, QueuePool

from pollux_slurm.errors import StoreError
from pollux_slurm.store.access.database import WRITES
from pollux_slurm.store.access.file_permissions import owner_whom_root_reads
from pollux_slurm.store.access.url import StoreUrl

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for SQLite's one write lock. A transaction takes it for milliseconds."""

IDLE_IN_TRANSACTION_S = 20.0
"""How long a client of PostgreSQL may be idle in a transaction: shorter than others wait for its locks. A
client that is stopped within a transaction, or whose machine hangs, must not block all others."""

CONNECT_TIMEOUT_S = 10

OTHERS_FILE_S = 60.0
"""How long root's one transaction in the SQLite file of another user may take."""

# Of SQLite's virtual machine: some milliseconds.
_STEPS_BETWEEN_LOOKS = 100_000


def make_engine(url: StoreUrl) -> Engine:
    """Return an engine for a store that exists. Nothing is connected yet."""
    if url.path is None:
        settings = {
            "lock_timeout": int(BUSY_TIMEOUT_S * 1000),
            "idle_in_transaction_session_timeout": int(IDLE_IN_TRANSACTION_S * 1000),
            "timezone": "utc",
            "jit": "off",  # compiling takes seconds for views that take a tenth of one
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        engine = _postgresql_engine(url, {"options": options}, pool_pre_ping=True, pool_size=2)
    else:
        engine = _sqlite_engine(url.path)
    return _surviving_forks(engine)


def make_call_engine(url: StoreUrl, *, keep: bool) -> Engine:
    """Return an engine for a job's function calls in PostgreSQL: a connection each, or one that is kept.

    It uses nothing that a pooler in front of the server (PgBouncer in transaction mode) refuses.
    """
    arguments = {"prepare_threshold": None}
    if not keep:
        return _postgresql_engine(url, arguments, poolclass=NullPool)
    return _surviving_forks(_postgresql_engine(url, arguments, pool_size=1, max_overflow=1))


def _surviving_forks(engine: Engine) -> Engine:
    _engines.add(engine)
    return engine


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_pools_of_parent: list[Pool] = []


def _leave_connections_to_parent() -> None:
    # Training programs fork (data loaders), and two processes must not share a connection. The child neither
    # uses nor closes it, because closing its copy would end the parent's; so a reference is kept.
    for engine in list(_engines):
        _pools_of_parent.append(engine.pool)
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_leave_connections_to_parent)


def _postgresql_engine(url: StoreUrl, arguments: dict[str, Any], **options: Any) -> Engine:
    defaults = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": "pollux",
        # Without these, a call waits for hours for a server whose host is gone.
        "tcp_user_timeout": int(BUSY_TIMEOUT_S * 1000),
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }
    given = url.url.query
    arguments = {k: v for k, v in {**defaults, **arguments}.items() if k not in given}
    try:
        return create_engine(url.url, connect_args=arguments, **options)
    except ImportError:
        raise StoreError(
            "the driver for PostgreSQL is not installed: pip install 'psycopg[binary]'"
        ) from None


def _sqlite_engine(path: Path) -> Engine:
    # mode=rw: a removed file must not be created again, empty.
    file = f"file:{quote(str(path))}?mode=rw"

    def connect() -> sqlite3.Connection:
        # isolation_level=None: the driver begins no transactions itself; see _begin.
        return sqlite3.connect(
            file, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )

    engine = create_engine("sqlite+pysqlite://", creator=connect, poolclass=QueuePool, pool_size=2)
    if owner_whom_root_reads(path) is not None:
        event.listen(engine, "connect", _limit_time)
        event.listen(engine, "checkout", _limit_time)
    event.listen(engine, "connect", _set_pragmas)
    event.listen(engine, "begin", _begin)
    return engine


def _limit_time(connection: sqlite3.Connection, *_entries: object) -> None:
    end_s = time.monotonic() + OTHERS_FILE_S
    connection.set_progress_handler(lambda: time.monotonic() > end_s, _STEPS_BETWEEN_LOOKS)


def _set_pragmas(connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    # FULL: what was acknowledged survives a power cut, as the journal of reallocations needs.
    cursor.execute("PRAGMA synchronous = FULL")
    (mode,) = cursor.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":  # persistent; checked first, because setting it locks the whole file
        cursor.execute("PRAGMA journal_mode = WAL")
    cursor.close()


def _begin(connection: Connection) -> None:
    # A deferred transaction that reads and then writes fails at once, without waiting, when another wrote in
    # between. An immediate one waits for its turn when it begins.
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
