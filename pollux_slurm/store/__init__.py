"""Where jobs and daemon meet: a database, SQLite or PostgreSQL.

May be imported by `agent`, `cli`, `functions`, `launch`, `now`, `torch`, `web`.

`contract` has the guarantees of every backend. The two functions here open a store. They import the database
library when called, so that a command that needs no store starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pollux_slurm.store.contract.interface import JobStore, Store

__all__ = ["open_agent_store", "open_store"]


def open_store(url: str, *, create: bool = False) -> Store:
    """Open the store at an SQLAlchemy URL: `sqlite:////path/to/pollux.db` or `postgresql://user@host/db`.

    With `create`, a store that does not exist is made first. Raises `ConfigError` for an invalid URL,
    `SchemaVersionError` (with the command to type) when the schema is missing or of another version,
    `StoreUnavailable` when the database cannot be reached, and `StoreError` otherwise.
    """
    from pollux_slurm.store.access.opening import open_database
    from pollux_slurm.store.sql_store import SqlStore

    if not create:
        return SqlStore(open_database(url))
    from pollux_slurm.store.maintenance.migration import initialize

    return SqlStore(open_database(url, initialize=initialize))


def open_agent_store(url: str, *, keep_connection: bool = False) -> JobStore:
    """Open the API for jobs of the store at `url`; raises what `open_store` does.

    On PostgreSQL nothing is connected before the first call: the job's login may only call seven functions.
    Each call makes its own connection. `keep_connection` keeps one open: only for a pooler in front of the
    server, because the server itself has too few connections for all jobs.
    """
    from pollux_slurm.store.access.opening import database_for_calls, open_database
    from pollux_slurm.store.access.url import parse_store_url

    parsed = parse_store_url(url)
    if parsed.path is None:
        from pollux_slurm.store.agent_api.postgresql_api import PostgresqlAgentStore

        return PostgresqlAgentStore(database_for_calls(parsed, keep=keep_connection))
    from pollux_slurm.store.agent_api.sqlite_api import SqliteAgentStore

    return SqliteAgentStore(open_database(url))
