"""The limits of logins, and keeping those that jobs share as `pollux db login --shared` made them.

PostgreSQL lets every role change its own defaults: whoever has a shared login could set its statements' time
to a millisecond, or make its transactions read-only, for all who come after. In each round the
daemon checks and restores them, as the login itself: it may become that role, which may do less than its own.
Nobody can prevent a changed password; docs/postgresql.md describes how to do without one.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

USER_SETTINGS = (
    ("idle_in_transaction_session_timeout", "10s"),
    ("statement_timeout", "10s"),
    ("lock_timeout", "5s"),
    ("idle_session_timeout", "30s"),
    ("client_connection_check_interval", "10s"),
    ("log_parameter_max_length_on_error", "0"),
)
"""What a shared login has by default and may change."""

ADMIN_SETTINGS = (("log_parameter_max_length", "0"), ("temp_file_limit", "16MB"))
"""What only a superuser may change for it."""

SHARED_MARK = "temp_file_limit=16MB"
"""The setting that marks a shared login, and not a person's."""

PERSONS_SETTINGS = (
    ("idle_in_transaction_session_timeout", "60s"),
    ("statement_timeout", "10min"),
    ("idle_session_timeout", "1h"),
    ("client_connection_check_interval", "10s"),
    ("temp_file_limit", "256MB"),
)
"""What the login of a person has by default. Only the last is beyond the person's own reach; the daemon ends
what goes on for longer all the same."""

# pollux_daemon is a member of shared logins, and of no other login.
_CHANGED = """
SELECT r.rolname, d.datname, s.setconfig
FROM pg_auth_members AS m
JOIN pg_roles AS g ON g.oid = m.member AND g.rolname = 'pollux_daemon'
JOIN pg_roles AS r ON r.oid = m.roleid AND r.rolcanlogin AND NOT r.rolsuper
LEFT JOIN pg_db_role_setting AS s ON s.setrole = r.oid
LEFT JOIN pg_database AS d ON d.oid = s.setdatabase
ORDER BY r.rolname, d.datname NULLS FIRST
"""


def changed_logins(connection: Connection) -> dict[str, list[str]]:
    """Return, per shared login that is not as it was made, the databases for which it has settings."""
    wanted = {f"{name}={value}" for name, value in USER_SETTINGS}
    kept = {name for name, _ in ADMIN_SETTINGS}
    changed: dict[str, list[str]] = {}
    seen: dict[str, bool] = {}
    for login, database, settings in connection.execute(text(_CHANGED)):
        own = {setting for setting in settings or () if setting.partition("=")[0] not in kept}
        seen.setdefault(login, False)
        if database is not None:
            if own:
                changed.setdefault(login, []).append(database)
        elif settings is not None and own == wanted:
            seen[login] = True
    for login, is_whole in seen.items():
        if not is_whole:
            changed.setdefault(login, [])
    return changed


def mend_login(connection: Connection, login: str, databases: list[str]) -> None:
    """Give a shared login the settings that it was made with, as itself, waiting for nobody for long."""
    quote = connection.dialect.identifier_preparer.quote_identifier
    name = quote(login)
    statements = [
        "SET LOCAL lock_timeout = '200ms'",
        f"SET LOCAL ROLE {name}",
        f"ALTER ROLE {name} RESET ALL",
        *(f"ALTER ROLE {name} IN DATABASE {quote(database)} RESET ALL" for database in databases),
        *(f"ALTER ROLE {name} SET {setting} = '{value}'" for setting, value in USER_SETTINGS),
        "RESET ROLE",
    ]
    for statement in statements:
        connection.exec_driver_sql(statement.replace("%", "%%"))
