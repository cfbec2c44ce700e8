"""What the commands of `pollux db` do, callable from Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pollux_slurm.errors import StoreError
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.file_permissions import owner_whom_root_reads, share_with_group
from pollux_slurm.store.access.opening import check_schema, check_version, read_version, unchecked_database
from pollux_slurm.store.access.url import StoreUrl, parse_store_url
from pollux_slurm.store.maintenance import migration
from pollux_slurm.store.maintenance.migration import write_host_id
from pollux_slurm.store.schema import REVISIONS
from pollux_slurm.store.schema.views import VIEWS
from pollux_slurm.store.security.grants import make_login, missing_roles
from pollux_slurm.store.security.grants_check import security_problems


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """Result of a command on a store. `url` has no password; `before` is the version found first.

    `notes` tell the admin what could not be done, and how to do it.
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
    """Create the file and the tables of a store; no effect when they exist in this version."""
    with _unchecked_database(url, create=True) as database:
        made = migration.initialize(database)
        return StoreStatus(
            url=str(database.url),
            version=REVISIONS[-1],
            before=None if made else REVISIONS[-1],
            notes=_notes(database),
        )


def upgrade_store(url: str) -> StoreStatus:
    """Upgrade a store to this release's schema, keeping its data."""
    with _unchecked_database(url) as database:
        before, after = migration.upgrade(database)
        return StoreStatus(url=str(database.url), version=after, before=before, notes=_notes(database))


def downgrade_store(url: str, revision: str) -> StoreStatus:
    """Give a store the schema of an earlier release, whose own upgrade then makes what has no data.

    What only later releases know is deleted. Raises `StoreError` for a revision that there is not.
    """
    with _unchecked_database(url) as database:
        before = migration.downgrade(database, revision)
        return StoreStatus(url=str(database.url), version=revision, before=before)


def check_store(url: str) -> StoreStatus:
    """Check a store for changed tables, broken pages and dangling references.

    Raises `SchemaVersionError` for another version's schema, and `StoreError` for root where the file is
    another user's.
    """
    _refuse_others_file(parse_store_url(url))
    with _unchecked_database(url) as database, database.read() as connection:
        version = check_schema(database.url, connection)
        problems = [f"differs from the schema: {text}" for text in migration.differences(connection)]
        problems += security_problems(connection)
        for view in VIEWS:
            connection.exec_driver_sql(f"SELECT * FROM {view} LIMIT 1")
        if connection.dialect.name == "sqlite":
            for (text,) in connection.exec_driver_sql("PRAGMA integrity_check(5)"):
                if text != "ok":
                    problems.append(f"damaged: {text}")
            for row in connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(5):
                problems.append(f"table {row[0]}, row {row[1]}: refers to a row of {row[2]} that is gone")
        return StoreStatus(
            url=str(database.url), version=REVISIONS[-1], before=version, problems=tuple(problems)
        )


def _refuse_others_file(url: StoreUrl) -> None:
    owner = owner_whom_root_reads(url.path) if url.path is not None and url.path.exists() else None
    if owner is not None:
        raise StoreError(
            f"{url.path} belongs to {owner}, who can make its tables and views answer anything; check it as "
            f"that user: {url.command('check')}"
        )


def add_login(
    url: str, name: str, *, shared: bool, connections: int, roles: tuple[str, ...]
) -> tuple[str, ...]:
    """Create or change a login of a PostgreSQL store; return notes for its admin.

    See `pollux_slurm.store.security.grants.make_login` for what is refused.
    """
    with _unchecked_database(url) as database, database.write() as connection:
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
    """Make an SQLite store this host's; return the store's URL. Raises `StoreError`."""
    with _unchecked_database(url, any_host=True) as database:
        if database.url.path is None:
            raise StoreError("a store in PostgreSQL belongs to no host")
        with database.write() as connection:
            write_host_id(connection)
        return str(database.url)


def share_store(url: str, group: str) -> str:
    """Allow a group of this host to open an SQLite store; return the store's URL.

    Raises `UsageError` for an unknown group, and `StoreError`, with what to do, where it is not possible.
    """
    with _unchecked_database(url) as database:
        if database.url.path is None:
            raise StoreError("in PostgreSQL people have logins of their own: pollux db login NAME")
        share_with_group(database.url, database.url.path, group)
        return str(database.url)


@contextmanager
def _unchecked_database(url: str, *, create: bool = False, any_host: bool = False) -> Iterator[Database]:
    database = unchecked_database(parse_store_url(url), create=create, any_host=any_host)
    try:
        yield database
    finally:
        database.close()
