"""Who may do what in a PostgreSQL store: `sql/security/`, applied after every change of the schema.

Four group roles: `pollux_agent` may execute seven functions and nothing else, `pollux_reader` sees a person's
own rows of the reporting views (`reader_views`), `pollux_analyst` everybody's, `pollux_daemon` reads and
writes the tables. A fifth, `pollux_owner`, owns everything where a superuser made the store, so that no
function runs as one. Where somebody without the right to make roles keeps a database of their own, the
functions are made all the same, and only their owner may call them. In SQLite nothing is to be done: it knows
no users.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, inspect, text

from pollux_slurm.errors import StoreError, UsageError
from pollux_slurm.store.agent_api.statements import RECORDING, statements
from pollux_slurm.store.contract.bounds import (
    BURST_REPORTS,
    LEAST_BURST_REPORTS,
    LEAST_REPORTS_PER_S,
    MAX_REPORT_BYTES,
    ORDINARY_BYTES,
    REPORTS_PER_S,
    USERS_BURST_REPORTS,
    USERS_REPORTS_PER_S,
)
from pollux_slurm.store.journal.reallocations import ENDS
from pollux_slurm.store.schema import VERSION_TABLE, Base
from pollux_slurm.store.schema.dialects import rendered_sql
from pollux_slurm.store.schema.views import VIEWS
from pollux_slurm.store.security.grants_check import shared_logins_elsewhere
from pollux_slurm.store.security.reader_views import OWN_SCHEMA, own_view_values
from pollux_slurm.store.security.shared_logins import (
    ADMIN_SETTINGS,
    PERSONS_SETTINGS,
    SHARED_MARK,
    USER_SETTINGS,
)

ROLES = ("pollux_agent", "pollux_reader", "pollux_analyst", "pollux_daemon")
OWNER = "pollux_owner"
ALLOWANCES = "pollux_allowances"

_OUR_FUNCTIONS = r"""
SELECT p.oid::regprocedure::text FROM pg_proc AS p
WHERE p.pronamespace = current_schema()::regnamespace
  AND (p.proname LIKE 'pollux\_%'
       OR p.oid IN (SELECT t.tgfoid FROM pg_trigger AS t WHERE t.tgrelid::regclass::text = ANY(:tables)))
ORDER BY 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rights:
    """What the connected role may do, and what is there already."""

    is_superuser: bool
    makes_roles: bool
    roles: frozenset[str]

    @property
    def is_granted(self) -> bool:
        """Whether the group roles are there, or can be made."""
        return self.makes_roles or self.roles.issuperset(ROLES)


def apply_security(connection: Connection) -> None:
    """Make functions, and roles with their rights as far as the connected role may; PostgreSQL only."""
    if connection.dialect.name != "postgresql":
        return
    rights = _rights(connection)
    names = (*ROLES, OWNER) if rights.is_superuser else ROLES
    if rights.makes_roles and not rights.roles.issuperset(names):
        _run(connection, "roles.sql", roles=names, superuser=rights.is_superuser)
    _run(
        connection,
        "functions.sql",
        schema=_schema(connection),
        burst=BURST_REPORTS,
        refill_per_s=REPORTS_PER_S,
        user_burst=USERS_BURST_REPORTS,
        user_per_s=USERS_REPORTS_PER_S,
        least_burst=LEAST_BURST_REPORTS,
        least_per_s=LEAST_REPORTS_PER_S,
        ends=", ".join(f"'{step.value}'" for step in ENDS),
        ordinary_bytes=ORDINARY_BYTES,
        max_bytes=MAX_REPORT_BYTES,
        statements=statements("postgresql"),
        recording=RECORDING,
    )
    functions = _functions(connection)
    if rights.is_superuser:
        for relation in (*Base.metadata.tables, VERSION_TABLE, ALLOWANCES, *VIEWS):
            connection.exec_driver_sql(f"ALTER TABLE {relation} OWNER TO {OWNER}")
        for function in functions:
            connection.exec_driver_sql(f"ALTER FUNCTION {function} OWNER TO {OWNER}")
        connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {_schema(connection)} TO {OWNER}")
    _run(
        connection,
        "grants.sql",
        database=_quoted(connection, connection.engine.url.database or ""),
        schema=_schema(connection),
        tables=[*Base.metadata.tables],
        views=[*VIEWS],
        sequences=inspect(connection).get_sequence_names(),
        functions=functions,
        version_table=VERSION_TABLE,
        granted=rights.is_granted,
    )
    if rights.is_granted:
        _run(
            connection,
            "own_views.sql",
            schema=_schema(connection),
            superuser=rights.is_superuser,
            **own_view_values(connection),
        )
    if rights.is_superuser:
        _run(
            connection,
            "hardening.sql",
            own=OWN_SCHEMA,
            schema=_schema(connection),
            shared_mark=SHARED_MARK,
            settings=PERSONS_SETTINGS,
        )


def drop_security(connection: Connection) -> None:
    """Drop the functions, and what they keep, before the tables change under them. Roles and rights stay."""
    if connection.dialect.name != "postgresql":
        return
    connection.exec_driver_sql(f"DROP SCHEMA IF EXISTS {OWN_SCHEMA} CASCADE")
    for function in connection.execute(
        text(
            "SELECT p.oid::regprocedure::text FROM pg_proc AS p WHERE p.proname LIKE 'pollux\\_%' "
            "AND p.pronamespace = current_schema()::regnamespace AND p.prorettype <> 'trigger'::regtype"
        )
    ).scalars():
        connection.exec_driver_sql(f"DROP FUNCTION {function} CASCADE")
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {ALLOWANCES}")


def missing_roles(connection: Connection) -> tuple[str, ...]:
    """Return the group roles that are not there, since nobody with the right to make them made the store."""
    if connection.dialect.name != "postgresql":
        return ()
    return tuple(role for role in ROLES if role not in _rights(connection).roles)


def make_login(
    connection: Connection, name: str, *, shared: bool, connections: int, roles: tuple[str, ...]
) -> tuple[str, ...]:
    """Make a login, or change one, with `roles`; return lines that the admin should know of.

    A `shared` one, for jobs of many users, is hardened; people's are bounded, the daemon's is not. Raises
    `UsageError` for a name or role that cannot be one, and `StoreError` for who may not make logins.
    """
    if (
        not name
        or name.startswith("pg_")
        or name in (*ROLES, OWNER)
        or not name.isprintable()
        or len(name) > 63
    ):
        raise UsageError(f"{name!r} cannot be a login's name")
    unknown = [role for role in roles if role not in ROLES]
    if unknown or not roles:
        raise UsageError(f"a login has one or more of the roles {', '.join(ROLES)}, not {', '.join(unknown)}")
    if shared and roles != ("pollux_agent",):
        raise UsageError("a login that jobs share has the role pollux_agent and no other")
    if connection.dialect.name != "postgresql":
        raise StoreError("SQLite knows no logins: it is for one user, or one group, of one host")
    rights = _rights(connection)
    if not rights.is_superuser:
        raise StoreError(
            "only a superuser of PostgreSQL may make logins; run it as one: sudo -u postgres pollux db ..."
        )
    if not rights.roles.issuperset(ROLES):
        raise StoreError("the store's roles are missing; make them first: pollux db init")
    _run(
        connection,
        "login.sql",
        name=_quoted(connection, name),
        name_text="'" + name.replace("'", "''") + "'",
        shared=shared,
        connections=connections,
        memberships=roles,
        others=[role for role in ROLES if role not in roles],
        other_databases=_CLOSED,
        settings=_settings(shared, roles),
        database=_quoted(connection, connection.engine.url.database or ""),
        reads_own="pollux_reader" in roles and not {"pollux_analyst", "pollux_daemon"}.intersection(roles),
        own=OWN_SCHEMA,
        schema=_schema(connection),
        set_in=[_quoted(connection, database) for database in _databases_with_settings(connection, name)],
    )
    if not shared:
        return ()
    closed = " and ".join(_CLOSED)
    return (
        f"{closed} are closed to all logins but superusers: {name} could end its siblings' connections from "
        f"there. What else uses one needs: GRANT CONNECT ON DATABASE {_CLOSED[0]} TO its login",
        *_still_open(connection, name),
    )


def _still_open(connection: Connection, name: str) -> tuple[str, ...]:
    """Return a note for each other database to which a shared login may connect."""
    return tuple(
        f"{login} may still connect to the database {database!r}, from where it could end its siblings' "
        f"connections: in pg_hba.conf let it in to {connection.engine.url.database!r} only"
        for login, database in shared_logins_elsewhere(connection)
        if login == name
    )


_CLOSED = ("postgres", "template1")
"""Databases of every server, from which a login could act on its own connections to the store."""


def _settings(shared: bool, roles: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    if shared:
        return USER_SETTINGS + ADMIN_SETTINGS
    return () if "pollux_daemon" in roles else PERSONS_SETTINGS


def _databases_with_settings(connection: Connection, login: str) -> list[str]:
    found = connection.execute(
        text(
            "SELECT d.datname FROM pg_db_role_setting AS s JOIN pg_roles AS r ON r.oid = s.setrole "
            "JOIN pg_database AS d ON d.oid = s.setdatabase WHERE r.rolname = :login"
        ),
        {"login": login},
    )
    return [*found.scalars()]


def _rights(connection: Connection) -> _Rights:
    me = connection.execute(
        text("SELECT rolsuper, rolsuper OR rolcreaterole AS makes FROM pg_roles WHERE rolname = current_user")
    ).one()
    found = connection.execute(
        text("SELECT rolname FROM pg_roles WHERE rolname = ANY(:names)"), {"names": [*ROLES, OWNER]}
    )
    return _Rights(is_superuser=me.rolsuper, makes_roles=me.makes, roles=frozenset(found.scalars()))


def _functions(connection: Connection) -> list[str]:
    tables = {"tables": [*Base.metadata.tables]}
    return [*connection.execute(text(_OUR_FUNCTIONS), tables).scalars()]


def _schema(connection: Connection) -> str:
    return _quoted(connection, str(connection.execute(text("SELECT current_schema()")).scalar_one()))


def _quoted(connection: Connection, name: str) -> str:
    return connection.dialect.identifier_preparer.quote_identifier(name)


def _run(connection: Connection, file: str, **values: Any) -> None:
    script = rendered_sql(f"security/{file}", "postgresql", **values)
    # Without parameters the driver takes several statements at once, and % in them as it is.
    cursor = connection.connection.cursor()
    try:
        cursor.execute(script.encode())
    finally:
        cursor.close()
