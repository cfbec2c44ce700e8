"""Where jobs and daemon meet: a database, SQLite or PostgreSQL.

May be imported by `cli`, `torch`.

`contract` says what every backend promises. The two functions here open a store; the database library is
imported only when they are called, so that a command that needs no store starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pollux_slurm.store.contract.interface import AgentStore, Store

__all__ = ["open_agent_store", "open_store"]


def open_store(url: str, *, create: bool = False) -> Store:
    """Open the store at an SQLAlchemy URL: `sqlite:////path/to/pollux.db` or `postgresql://user@host/db`.

    With `create`, a store that does not exist is made first. Raises `ConfigError` for a URL that makes no
    sense, `SchemaVersionError` (which ends in the command to type) when the schema is missing or another
    version's, `StoreUnavailable` when the database cannot be reached, `StoreError` otherwise.
    """
    from pollux_slurm.store.access.opening import open_database
    from pollux_slurm.store.sql_store import SqlStore

    if not create:
        return SqlStore(open_database(url))
    from pollux_slurm.store.maintenance.migration import initialize

    return SqlStore(open_database(url, initialize=initialize))


def open_agent_store(url: str, *, keep_connection: bool = False) -> AgentStore:
    """Open the job's door of the store at `url`; raises what `open_store` does.

    On PostgreSQL nothing is connected before the first call: the job's login may only call three functions.
    Each call is a connection of its own but with `keep_connection`, which is for a pooler in front: that has
    room for as many as there are jobs, the server itself does not.
    """
    from pollux_slurm.store.access.opening import open_database, reach_for_calls
    from pollux_slurm.store.access.url import parse_store_url

    parsed = parse_store_url(url)
    if parsed.path is None:
        from pollux_slurm.store.agent_api.postgresql_api import FunctionAgentStore

        return FunctionAgentStore(reach_for_calls(parsed, keep=keep_connection))
    from pollux_slurm.store.agent_api.sqlite_api import SqlAgentStore

    return SqlAgentStore(open_database(url))
