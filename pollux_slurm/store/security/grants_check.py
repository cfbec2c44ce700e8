"""Look whether a PostgreSQL store is as closed as `sql/security/` makes it: a part of `pollux db check`."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, text

from pollux_slurm.store.schema import VERSION_TABLE, Base
from pollux_slurm.store.schema.views import VIEWS
from pollux_slurm.store.security.reader_views import OWN_SCHEMA
from pollux_slurm.store.security.shared_logins import SHARED_MARK

_OURS = r"p.proname LIKE 'pollux\_%' AND p.pronamespace = current_schema()::regnamespace"
_EVERYBODY = """
    EXISTS (SELECT FROM aclexplode(COALESCE({acl}, acldefault({kind}, {owner}))) AS a
            WHERE a.grantee = 0{more})
"""

_OPEN_FUNCTIONS = (
    f"SELECT p.oid::regprocedure::text FROM pg_proc AS p WHERE {_OURS} AND "
    + _EVERYBODY.format(acl="p.proacl", kind="'f'", owner="p.proowner", more="")
)
_SUPERUSERS_FUNCTIONS = (
    "SELECT p.oid::regprocedure::text FROM pg_proc AS p JOIN pg_roles AS r ON r.oid = p.proowner "
    f"WHERE {_OURS} AND p.prosecdef AND r.rolsuper"
)
_OPEN_TABLES = (
    "SELECT c.relname FROM pg_class AS c WHERE c.relname = ANY(:names) "
    "AND c.relnamespace = current_schema()::regnamespace AND "
    + _EVERYBODY.format(acl="c.relacl", kind="'r'", owner="c.relowner", more="")
)
_OPEN_SCHEMA = (
    "SELECT n.nspname FROM pg_namespace AS n WHERE n.nspname = current_schema() AND "
    + _EVERYBODY.format(
        acl="n.nspacl", kind="'n'", owner="n.nspowner", more=" AND a.privilege_type = 'CREATE'"
    )
)
_TABLES_OF_PEOPLE = """
SELECT r.rolname, c.relname FROM pg_class AS c, pg_roles AS r
WHERE r.rolname IN ('pollux_agent', 'pollux_reader') AND c.relkind IN ('r', 'v', 'm', 'p', 'f')
  AND c.relnamespace = current_schema()::regnamespace
  AND has_table_privilege(r.oid, c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')
  AND NOT (r.rolname = 'pollux_reader' AND c.relname = :version_table)
ORDER BY 1, 2
"""
_SHARED_LOGINS_ELSEWHERE = """
SELECT r.rolname, d.datname
FROM pg_auth_members AS m
JOIN pg_roles AS g ON g.oid = m.roleid AND g.rolname = 'pollux_agent'
JOIN pg_roles AS r ON r.oid = m.member AND r.rolcanlogin AND NOT r.rolsuper
JOIN pg_database AS d ON d.datallowconn AND d.datname <> current_database()
WHERE EXISTS (SELECT FROM pg_db_role_setting AS s WHERE s.setrole = r.oid
              AND :shared_mark = ANY (s.setconfig))
  AND has_database_privilege(r.oid, d.oid, 'CONNECT')
  AND COALESCE(shobj_description(d.oid, 'pg_database'), '') NOT LIKE 'pollux store%'
ORDER BY 1, 2
"""


def security_problems(connection: Connection) -> list[str]:
    """Return what is more open than `sql/security/` makes it, each in one line; empty when nothing is."""
    if connection.dialect.name != "postgresql":
        return []
    if connection.execute(text("SELECT current_schema()")).scalar() == OWN_SCHEMA:
        return []  # a reader of views sees nothing of the rest
    return [f"differs from sql/security: {problem}" for problem in _problems(connection)]


def shared_logins_elsewhere(connection: Connection) -> list[tuple[str, str]]:
    """Return (login, database) for logins that jobs share and databases, not stores, they may connect to.

    `pg_hba.conf`, which only the server's machine can read, may still keep them out.
    """
    found = connection.execute(text(_SHARED_LOGINS_ELSEWHERE), {"shared_mark": SHARED_MARK})
    return [(row.rolname, row.datname) for row in found]


def _problems(connection: Connection) -> Iterator[str]:
    again = "apply it again: pollux db upgrade"
    for name in connection.execute(text(_OPEN_FUNCTIONS)).scalars():
        yield f"everybody may call {name}; {again}"
    for name in connection.execute(text(_SUPERUSERS_FUNCTIONS)).scalars():
        yield f"{name} runs with a superuser's rights; {again}"
    names = {"names": [*Base.metadata.tables, *VIEWS, VERSION_TABLE]}
    for name in connection.execute(text(_OPEN_TABLES), names).scalars():
        yield f"everybody has rights on {name}; {again}"
    for name in connection.execute(text(_OPEN_SCHEMA)).scalars():
        yield f"everybody may make things in the schema {name}; {again}"
    for role, name in connection.execute(text(_TABLES_OF_PEOPLE), {"version_table": VERSION_TABLE}):
        yield f"{role} has rights on {name}; revoke them: REVOKE ALL ON {name} FROM {role}"
