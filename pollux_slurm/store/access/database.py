"""Transactions: the one place that begins, commits and rolls back, and that translates a driver's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from pollux_slurm.errors import StoreError, StoreUnavailable
from pollux_slurm.store.access.url import StoreUrl

WRITES = "pollux_writes"
"""Execution option of a writing transaction, which locks when it begins."""

_NO_RIGHT = "this login lacks a right; its admin grants roles with: pollux db login NAME"
# SQLite raises OperationalError for all of these, but a retry does not help.
_PERMANENT = {
    "attempt to write a readonly database": "it may only be read by this user",
    "no such table": "its tables are not the ones that this release made; restore it from a backup",
    "no such column": "its tables are not the ones that this release made; restore it from a backup",
    "file is not a database": "this file is not an SQLite database; name another file, or move it away",
    "disk image is malformed": "the file is damaged; restore it from a backup",
    "interrupted": "root reads a file of another user for a limited time; run the command as its owner",
    # The lock of whoever changes the schema.
    "permission denied for function pg_advisory_xact_lock": (
        "this login may not change its tables; run the command as the database's admin: sudo -u postgres ... "
        "--store postgresql:///DATABASE"
    ),
    "permission denied for table pollux_schema_version": _NO_RIGHT,
    "permission denied for table": (
        "this login may not read its tables, as pollux status and explain do; a reader's sees its own jobs "
        "in the reporting views, by: pollux report job JOB, or pollux report cluster"
    ),
    "permission denied for": _NO_RIGHT,
}

# The messages of SQLite and of PostgreSQL.
_FULL = ("database or disk is full", "No space left on device")


class Database:
    """A store's engine with its two kinds of transaction. Threads may share it, and so may a fork."""

    def __init__(self, engine: Engine, url: StoreUrl) -> None:
        self.url = url
        self.engine = engine
        # All statements of one read see the same snapshot: WAL gives it in SQLite, this level in PostgreSQL.
        reading = {} if url.path else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._reader = engine.execution_options(**reading)
        self._writer = engine.execution_options(**{WRITES: True})
        self._autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Read in one transaction that sees one snapshot of the database."""
        with translated_errors(self.url), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Write in one transaction: committed when the block ends, rolled back when it raises."""
        with translated_errors(self.url), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def autocommit(self) -> Iterator[Connection]:
        """Run one statement in autocommit mode: one round trip to the server."""
        with translated_errors(self.url), self._autocommit.connect() as connection:
            yield connection

    def close(self) -> None:
        """Close the connections. Closing twice is not an error."""
        self.engine.dispose()


@contextmanager
def translated_errors(url: StoreUrl) -> Iterator[None]:
    """Raise `StoreUnavailable` for transient errors and `StoreError` for permanent ones."""
    try:
        yield
    except SQLAlchemyError as error:
        raise _translated(error, url) from error
    except (UnicodeError, OverflowError) as error:  # raised by the drivers before they ask the database
        raise StoreError(f"the store {url} cannot hold a value that it was given: {error}") from error


def _translated(error: SQLAlchemyError, url: StoreUrl) -> StoreError:
    message = _driver_message(error)
    for pattern, meaning in _PERMANENT.items():
        if pattern in message:
            return StoreError(f"the store {url} cannot be used: {meaning} ({message})")
    is_transient = isinstance(error, OperationalError | InterfaceError | PoolTimeoutError)
    if is_transient or (isinstance(error, DBAPIError) and error.connection_invalidated):
        if any(pattern in message for pattern in _FULL):
            return StoreUnavailable(
                f"the disk of the store {url} is full: make room on it; nothing acknowledged is lost "
                f"({message})"
            )
        if "locked" in message:
            return StoreUnavailable(f"the store {url} stays locked by another process; try again later")
        return StoreUnavailable(f"the store {url} cannot be reached: {message}")
    return StoreError(f"the store {url} refused a statement: {message}")


def _driver_message(error: SQLAlchemyError) -> str:
    """Return the driver's message as one short line, without the statement and its values."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(cause).split())[:300]
