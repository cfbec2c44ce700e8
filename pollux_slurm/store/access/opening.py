"""Open a store: find it, connect to it, and check that its schema is this release's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from pollux_slurm.errors import SchemaVersionError, StoreError
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.engine import make_call_engine, make_engine
from pollux_slurm.store.access.file_permissions import check_access
from pollux_slurm.store.access.url import StoreUrl, parse_store_url
from pollux_slurm.store.schema import LAST_VIEW, REVISIONS, VERSION_TABLE, JobRow


def open_database(url: str, *, initialize: Callable[[Database], object] | None = None) -> Database:
    """Open the database of a store. With `initialize`, a missing file and missing tables are created."""
    parsed = parse_store_url(url)
    database = unchecked_database(parsed, create=initialize is not None)
    try:
        with database.read() as connection:
            if initialize is None or read_version(connection) is not None:
                initialize = None
                check_schema(parsed, connection)
        if initialize is not None:
            initialize(database)
    except BaseException:
        database.close()
        raise
    return database


def unchecked_database(url: StoreUrl, *, create: bool, any_host: bool = False) -> Database:
    """Return the database at `url` without checking its schema; with `any_host`, also another host's file."""
    if url.path is not None:
        _find_file(url, url.path, create=create, any_host=any_host)
    return Database(make_engine(url), url)


def database_for_calls(url: StoreUrl, *, keep: bool = False) -> Database:
    """Return a PostgreSQL database for a job's calls, not yet connected: see `make_call_engine`."""
    return Database(make_call_engine(url, keep=keep), url)


def read_version(connection: Connection) -> str | None:
    """Return the schema's version, None without a schema, "" when the table of the version is empty."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() or _missing_version(
        connection
    )


def _missing_version(connection: Connection) -> str | None:
    """Return None after a downgrade to no tables, which leaves the version table; "" if tables are there."""
    return "" if inspect(connection).has_table(JobRow.__tablename__) else None


def check_schema(url: StoreUrl, connection: Connection) -> str:
    """Return the schema's version. Raises `SchemaVersionError` unless tables and views are this release's."""
    version = read_version(connection)
    check_version(url, version)
    if not inspect(connection).has_table(LAST_VIEW):
        # After `pollux db downgrade`. Without triggers, the sums by day would stay behind in silence.
        raise SchemaVersionError(
            f"the store {url} went back to schema {version}, and lacks its views and triggers; stop the "
            f"daemon and run{_as_admin(url)}: {url.command('upgrade')}"
        )
    return REVISIONS[-1]


def _as_admin(url: StoreUrl) -> str:
    """Return whose login changes tables where it is not the daemon's."""
    return "" if url.path is not None else ", as the database's admin"


def check_version(url: StoreUrl, version: str | None) -> None:
    """Raise `SchemaVersionError`, with the command to type, unless `version` is this release's."""
    if version is None:
        raise SchemaVersionError(f"the store {url} has no tables yet; make them: {url.command('init')}")
    if version == "":
        raise SchemaVersionError(
            f"the store {url} has tables, but its table {VERSION_TABLE} is empty, so that their "
            f"version is unknown; restore it from a backup, or, if this release ({REVISIONS[-1]}) made them: "
            f"INSERT INTO {VERSION_TABLE} VALUES ('{REVISIONS[-1]}'), then {url.command('check')}"
        )
    if version < REVISIONS[0]:
        raise SchemaVersionError(
            f"the store {url} has schema {version}, which is older than {REVISIONS[0]}, the first that this "
            "release upgrades; an earlier one upgrades it to that (CHANGELOG.md names it); or begin with a "
            f"new store: put this one aside (rename the file or database), then {url.command('init')}"
        )
    if version not in REVISIONS:
        raise SchemaVersionError(
            f"the store {url} was made by a newer release (its schema is {version}, this release's is "
            f"{REVISIONS[-1]}); a job that began before the upgrade trains on, and reports again after "
            "scontrol requeue; else install that release, in a checkout of it: pip install --upgrade .; or, "
            f"while it is installed, go back: {url.command(f'downgrade {REVISIONS[-1]}')}"
        )
    if version != REVISIONS[-1]:
        raise SchemaVersionError(
            f"the store {url} has schema {version}, this release needs {REVISIONS[-1]}; "
            f"stop the daemon and run{_as_admin(url)}: {url.command('upgrade')}"
        )


def _find_file(url: StoreUrl, path: Path, *, create: bool, any_host: bool) -> None:
    """Check that the file of an SQLite store exists, or create it for its owner only."""
    folder = path.parent
    try:
        if path.is_dir():
            raise StoreError(f"{path} is a folder; name a file in it: sqlite:///{path}/pollux.db")
        if path.exists():
            check_access(url, path, any_host=any_host)
            return
        if not create:
            raise SchemaVersionError(f"there is no store at {path}; make it: {url.command('init')}")
        if not folder.is_dir():
            raise StoreError(f"there is no folder {folder} for the store; make it: mkdir -p {folder}")
        # An existing file is never opened here: see `file_permissions` on what closing it would do.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(f"the store's file {path} cannot be opened: {error.strerror}") from None
