"""Wait for connections to PostgreSQL to end: they outlive their clients until a sent statement is done."""

from __future__ import annotations

from collections.abc import Collection

from tests.waiting import wait_until

_QUERY = """
SELECT pid, usename FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def connections(url: str) -> dict[int, str]:
    """Return the server's process and the login of each other connection to it; none for SQLite."""
    if url.startswith("sqlite"):
        return {}
    import psycopg

    with psycopg.connect(url, autocommit=True) as asking:
        return {int(pid): str(login) for pid, login in asking.execute(_QUERY)}


def await_ends(url: str, *, but: Collection[int]) -> None:
    """Wait until all connections to a database's server have ended but these."""
    wait_until(lambda: connections(url).keys() <= set(but), timeout_s=120, what="connections to end")
