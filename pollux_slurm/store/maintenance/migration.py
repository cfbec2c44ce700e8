"""Create, upgrade and compare the schema. Only this module uses Alembic, and only for `pollux db`.

The migrations contain the tables. All that has no data is dropped before each migration and created again
after it, so that it never blocks a change of a column: comments, from the typed tables; triggers, views, and
PostgreSQL's functions, roles and rights, from `sql/`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, func, inspect, select
from sqlalchemy.schema import SetColumnComment, SetTableComment

from pollux_slurm.errors import SchemaVersionError, StoreError
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.file_permissions import host_id
from pollux_slurm.store.access.opening import check_version, read_version
from pollux_slurm.store.schema import REVISIONS, Base
from pollux_slurm.store.schema.triggers import create_triggers, drop_triggers
from pollux_slurm.store.schema.views import create_views, drop_views
from pollux_slurm.store.security.grants import apply_security, drop_security

_SCHEMA_LOCK = 0x706F6C6C7578  # any number that no other program is likely to use
MIGRATIONS = Path(__file__).resolve().parents[1] / "migrations"


def initialize(database: Database) -> bool:
    """Create the tables in an empty database; False when they exist in this release's version.

    Raises `SchemaVersionError` for another version, and `StoreError` when other tables with our names exist.
    """
    with database.write() as connection:
        _lock_schema(connection)
        version = read_version(connection)
        if version is not None:
            check_version(database.url, version)
            return False
        name_clashes = sorted(set(inspect(connection).get_table_names()) & set(Base.metadata.tables))
        if name_clashes:
            raise StoreError(
                f"{database.url} holds a table {name_clashes[0]!r} that pollux did not make; "
                "name another database"
            )
        migrate(connection, REVISIONS[-1])
        write_host_id(connection)
    return True


def upgrade(database: Database) -> tuple[str, str]:
    """Upgrade the schema to this release's version; return the versions before and after."""
    with database.write() as connection:
        _lock_schema(connection)
        version = read_version(connection)
        if version is None or version not in REVISIONS:
            check_version(database.url, version)
            raise SchemaVersionError(f"the store {database.url} has an unknown schema {version}")
        migrate(connection, REVISIONS[-1])
        write_host_id(connection)
    return version, REVISIONS[-1]


def downgrade(database: Database, revision: str) -> str:
    """Leave the tables as an earlier release has them, which then upgrades them; return the version before.

    Raises `StoreError` for a revision that this release does not know, or later than the store's.
    """
    with database.write() as connection:
        _lock_schema(connection)
        version = read_version(connection)
        check_version(database.url, version)
        if revision not in REVISIONS:
            raise StoreError(
                f"there is no schema {revision!r} to go back to; there is: {', '.join(REVISIONS)}"
            )
        migrate(connection, revision)
    return REVISIONS[-1]


def write_host_id(connection: Connection) -> None:
    """Write this host's id into an SQLite file: see `pollux_slurm.store.access.file_permissions`."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA user_version = {host_id()}")


def _lock_schema(connection: Connection) -> None:
    """Let one process at a time change the schema. SQLite has one writer at a time anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_SCHEMA_LOCK)))


def migrate(connection: Connection, revision: str) -> None:
    """Upgrade or downgrade to `revision` ("base": no tables), inside the caller's transaction."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    version = read_version(connection)
    drop_security(connection)
    drop_views(connection)
    drop_triggers(connection)
    with contextlib.suppress(ValueError):
        if revision == "base" or (version and REVISIONS.index(revision) < REVISIONS.index(version)):
            command.downgrade(config, revision)
            return
    command.upgrade(config, revision)
    if revision == REVISIONS[-1]:
        _write_comments(connection)
        create_triggers(connection)
        create_views(connection)
        apply_security(connection)


def _write_comments(connection: Connection) -> None:
    """Write the comments of tables and columns into a database that stores comments."""
    if not connection.dialect.supports_comments:
        return
    for table in Base.metadata.tables.values():
        connection.execute(SetTableComment(table))
        for column in table.columns:
            connection.execute(SetColumnComment(column))


def differences(connection: Connection) -> list[str]:
    """Return descriptions of how the tables differ from this release's schema."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    context = MigrationContext.configure(
        connection,
        opts={"include_object": _is_ours, "compare_type": True, "version_table": "pollux_schema_version"},
    )
    return [str(difference) for difference in compare_metadata(context, Base.metadata)]


def _is_ours(_object: object, name: str | None, kind: str, reflected: bool, _compared: object) -> bool:
    # Other programs may keep tables of their own in the same database.
    return not (kind == "table" and reflected and name not in Base.metadata.tables)
