"""The reporting views: one text per view in `sql/views/`, with the same names and columns on each database.

The texts are plain SQL but for `{{ seconds('a', 'b') }}`, the seconds from moment a to moment b, which
SQLite and PostgreSQL spell differently.
"""

from __future__ import annotations

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy import Connection

from pollux_slurm.resources import resource_dir

# In this order: a view may read those before it.
VIEWS = ("reallocation_history", "job_goodput")


def view_sql(name: str, dialect: str) -> str:
    """Return the CREATE VIEW statement of one view for `sqlite` or `postgresql`, without a semicolon."""
    environment = Environment(
        loader=FileSystemLoader(resource_dir("sql") / "views"), undefined=StrictUndefined, autoescape=False
    )
    environment.globals["seconds"] = _SECONDS[dialect]
    return environment.get_template(f"{name}.sql").render().strip().rstrip(";")


def create_views(connection: Connection) -> None:
    """Make all views."""
    for name in VIEWS:
        # A driver would take % and : in the text for parameters.
        connection.exec_driver_sql(view_sql(name, connection.dialect.name).replace("%", "%%"))


def drop_views(connection: Connection) -> None:
    """Drop the views that are there."""
    for name in reversed(VIEWS):
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")


def _seconds_sqlite(start: str, end: str) -> str:
    return f"((julianday({end}) - julianday({start})) * 86400.0)"


def _seconds_postgresql(start: str, end: str) -> str:
    return f"(extract(epoch FROM ({end}) - ({start}))::double precision)"


_SECONDS = {"sqlite": _seconds_sqlite, "postgresql": _seconds_postgresql}
