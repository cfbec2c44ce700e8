"""End connections to PostgreSQL that last too long (`pollux_end_long_connections` in `sql/security/`)."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

MAX_CONNECTION_S = 60.0
"""How long a connection of a login that only jobs use may last. A call takes milliseconds."""

MAX_QUESTION_S = 600.0
"""How long a person's transaction may last. The views answer about a year in seconds."""

MAX_IDLE_S = 3600.0
"""How long a person's connection may ask nothing."""

MAX_LOCK_S = 5.0
"""How long anybody's transaction may hold rows of the store. A call holds them for milliseconds."""


def end_long_connections(connection: Connection) -> None:
    """End what others keep open for too long; PostgreSQL only."""
    if connection.dialect.name == "postgresql":
        ended = func.pollux_end_long_connections(MAX_CONNECTION_S, MAX_QUESTION_S, MAX_IDLE_S, MAX_LOCK_S)
        connection.execute(select(ended))
