"""The reporting views: one text per view in `sql/views/`, with the same columns on each database.

The texts are SQL with the macros of `pollux_slurm.store.schema.dialects`.
"""

from __future__ import annotations

from sqlalchemy import Connection

from pollux_slurm.store.schema.base import LAST_VIEW
from pollux_slurm.store.schema.dialects import rendered_sql

# In order of creation: a view may read those before it.
VIEWS = (
    "reallocation_history",
    "job_goodput",
    "job_timeline",
    "round_history",
    "account_usage",
    "user_usage",
    "node_usage",
    "model_accuracy",
    "fairness",
    "job_samples",
    "job_kinds",
    LAST_VIEW,
)


def view_sql(name: str, dialect: str) -> str:
    """Return the CREATE VIEW statement of one view for `sqlite` or `postgresql`, without a semicolon."""
    return rendered_sql(f"views/{name}.sql", dialect)


def create_views(connection: Connection) -> None:
    """Create all views."""
    for name in VIEWS:
        # A driver would take % in the text for parameters.
        connection.exec_driver_sql(view_sql(name, connection.dialect.name).replace("%", "%%"))


def drop_views(connection: Connection) -> None:
    """Drop the existing views."""
    for name in reversed(VIEWS):
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
