"""What `pollux db` does, callable from Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pollux_slurm.errors import StoreError
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.file_permissions import share_with_group
from pollux_slurm.store.access.opening import check_version, reach_database, read_version
from pollux_slurm.store.access.url import parse_store_url
from pollux_slurm.store.maintenance import migration
from pollux_slurm.store.maintenance.migration import mark_host
from pollux_slurm.store.schema import REVISIONS
from pollux_slurm.store.schema.views import VIEWS
from pollux_slurm.store.security.grants import make_login, missing_roles
from pollux_slurm.store.security.grants_check import security_problems


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """What was found, or done. `url` has no password; `before` is the version found first.

    `notes` are for the admin: what was left undone, and what to do about it.
    """

    url: str
    version: str
    before: str | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return self.before != self.version


def init_store(url: str) -> StoreStatus:
    """Make the file and the tables of a store; nothing happens when they are there in this version."""
    with _reached(url, create=True) as database:
        made = migration.initialize(database)
        return StoreStatus(
            url=str(database.url),
            version=REVISIONS[-1],
            before=None if made else REVISIONS[-1],
            notes=_notes(database),
        )


def upgrade_store(url: str) -> StoreStatus:
    """Bring a store to this release's schema, keeping its data."""
    with _reached(url) as database:
        before, after = migration.upgrade(database)
        return StoreStatus(url=str(database.url), version=after, before=before, notes=_notes(database))


def check_store(url: str) -> StoreStatus:
    """Look for damage: changed tables, broken pages, references to nothing.

    Raises `SchemaVersionError` for another version's schema.
    """
    with _reached(url) as database, database.read() as connection:
        version = read_version(connection)
        check_version(database.url, version)
        problems = [f"not as the schema says: {words}" for words in migration.differences(connection)]
        problems += security_problems(connection)
        for view in VIEWS:
            connection.exec_driver_sql(f"SELECT * FROM {view} LIMIT 1")
        if connection.dialect.name == "sqlite":
            for (words,) in connection.exec_driver_sql("PRAGMA integrity_check(5)"):
                if words != "ok":
                    problems.append(f"damaged: {words}")
            for row in connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(5):
                problems.append(f"table {row[0]}, row {row[1]}: refers to a row of {row[2]} that is gone")
        return StoreStatus(
            url=str(database.url), version=REVISIONS[-1], before=version, problems=tuple(problems)
        )


def add_login(
    url: str, name: str, *, shared: bool, connections: int, roles: tuple[str, ...]
) -> tuple[str, ...]:
    """Make or change a login of a PostgreSQL store; return lines that its admin should know of.

    See `pollux_slurm.store.security.grants.make_login` for what is refused.
    """
    with _reached(url) as database, database.write() as connection:
        check_version(database.url, read_version(connection))
        return make_login(connection, name, shared=shared, connections=connections, roles=roles)


def _notes(database: Database) -> tuple[str, ...]:
    with database.read() as connection:
        missing = missing_roles(connection)
    if not missing:
        return ()
    return (
        f"the roles {', '.join(missing)} are missing, and this login may not make them: nobody else can use "
        f"the store until a superuser of PostgreSQL runs: {database.url.command('upgrade')}",
    )


def claim_store(url: str) -> str:
    """Make this host the one that may open an SQLite store; return the store's URL. Raises `StoreError`."""
    with _reached(url, any_host=True) as database:
        if database.url.path is None:
            raise StoreError("a store in PostgreSQL belongs to no host")
        with database.write() as connection:
            mark_host(connection)
        return str(database.url)


def share_store(url: str, group: str) -> str:
    """Let a group of this host open an SQLite store; return the store's URL.

    Raises `UsageError` for no such group, `StoreError` where it is not possible, with what to do.
    """
    with _reached(url) as database:
        if database.url.path is None:
            raise StoreError("in PostgreSQL people have logins of their own: pollux db login NAME")
        share_with_group(database.url, database.url.path, group)
        return str(database.url)


@contextmanager
def _reached(url: str, *, create: bool = False, any_host: bool = False) -> Iterator[Database]:
    database = reach_database(parse_store_url(url), create=create, any_host=any_host)
    try:
        yield database
    finally:
        database.close()
