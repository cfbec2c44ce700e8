"""Make the engine of each backend: pragmas, time-outs, and connections that survive a fork."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, QueuePool

from pollux_slurm.errors import StoreError
from pollux_slurm.store.access.database import WRITES
from pollux_slurm.store.access.url import StoreUrl

BUSY_TIMEOUT_S = 30.0
"""How long a writer queues for SQLite's one write lock. A transaction holds it for milliseconds."""

STALLED_S = 20.0
"""How long a client of PostgreSQL may hold what it locked and say nothing: less than others wait for it. One
that is stopped in the midst of a transaction, or whose machine hangs, must not stop everybody else."""

CONNECT_TIMEOUT_S = 10


def make_engine(url: StoreUrl) -> Engine:
    """Return an engine for a store that exists. Nothing is connected yet."""
    if url.path is None:
        settings = {
            "lock_timeout": int(BUSY_TIMEOUT_S * 1000),
            "idle_in_transaction_session_timeout": int(STALLED_S * 1000),
            "timezone": "utc",
            "jit": "off",
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        engine = _postgresql_engine(url, {"options": options}, pool_pre_ping=True, pool_size=2)
    else:
        engine = _sqlite_engine(url.path)
    return _surviving_forks(engine)


def make_calling_engine(url: StoreUrl, *, keep: bool) -> Engine:
    """Return an engine for a job's calls of functions in PostgreSQL: a connection each, or one that is kept.

    Nothing that a pooler in front of the server (PgBouncer, in transaction mode) would refuse is asked for.
    """
    arguments = {"prepare_threshold": None}
    if not keep:
        return _postgresql_engine(url, arguments, poolclass=NullPool)
    return _surviving_forks(_postgresql_engine(url, arguments, pool_size=1, max_overflow=1))


def _surviving_forks(engine: Engine) -> Engine:
    event.listen(engine, "connect", _remember_process)
    event.listen(engine, "checkout", _refuse_after_fork)
    return engine


def _postgresql_engine(url: StoreUrl, arguments: dict[str, Any], **options: Any) -> Engine:
    defaults = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": "pollux",
        # A host that vanished does not answer; without these, a call would wait for it for hours.
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
    # mode=rw: a file that was removed meanwhile must not come back empty.
    file = f"file:{quote(str(path))}?mode=rw"

    def connect() -> sqlite3.Connection:
        # isolation_level=None keeps the driver from beginning transactions by itself: see _begin.
        return sqlite3.connect(
            file, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )

    engine = create_engine("sqlite+pysqlite://", creator=connect, poolclass=QueuePool, pool_size=2)
    event.listen(engine, "connect", _set_pragmas)
    event.listen(engine, "begin", _begin)
    return engine


def _set_pragmas(connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    # FULL: what was acknowledged survives a power cut, which the journal of reallocations counts on.
    cursor.execute("PRAGMA synchronous = FULL")
    (mode,) = cursor.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":  # lasts in the file; asked first, because setting it takes the whole file's lock
        cursor.execute("PRAGMA journal_mode = WAL")
    cursor.close()


def _begin(connection: Connection) -> None:
    # A deferred transaction that reads and then writes fails at once when another wrote in between, without
    # waiting. One that says at its begin that it will write, queues.
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _remember_process(_connection: Any, entry: ConnectionPoolEntry) -> None:
    entry.info["process"] = os.getpid()


def _refuse_after_fork(connection: Any, entry: ConnectionPoolEntry, proxy: Any) -> None:
    # Training programs fork (data loaders), and a connection used from two processes damages both. It is
    # neither used nor closed here: it is kept, so that the parent's does not end with our copy of it.
    if entry.info["process"] != os.getpid():
        entry.record_info["of_parent"] = connection  # type: ignore[index]
        setattr(entry, "dbapi_connection", None)  # noqa: B010 - a slot that SQLAlchemy types as read-only
        proxy.dbapi_connection = None
        raise DisconnectionError("the connection belongs to the parent process")
