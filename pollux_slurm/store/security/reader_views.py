"""The reporting views as a reader of a PostgreSQL store has them: a person's own rows, by `session_user`.

Readers have no right on the views of `sql/views/`. They have views of the same names in the schema
`pollux_own`, made by `sql/security/own_views.sql`, each of which asks a function that runs as the owner. A
view with a filter of its own would not do, with `security_barrier` neither: PostgreSQL takes conditions with
"leakproof" operators (=, <) below the filter, and EXPLAIN then counts the rows of others that fit them.

A view must have a `user_name`, or be named here as one of `AGGREGATES`, with what these reveal of single
people: a new view that is neither cannot be made.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, inspect

from pollux_slurm.store.schema.views import VIEWS

OWN_SCHEMA = "pollux_own"
"""Readers find it before the store's own schema: `pollux db login` sets their search_path so."""

AGGREGATES = {
    "account_usage": "Shown whole to every reader: an account with one user reveals that user's usage.",
    "calendar": "Shown whole to every reader: days, and nothing that is anybody's.",
    "node_usage": "Shown whole to every reader: how busy each node was, not with whose jobs.",
    "round_history": "Shown whole to every reader: how many jobs were decided about, not whose.",
}
"""Views without a `user_name`, and what they reveal: it becomes the view's comment."""


def own_view_values(connection: Connection) -> dict[str, Any]:
    """Return what fills the template `own_views.sql`: how each view is asked for, and its columns."""
    columns = {view: [column["name"] for column in inspect(connection).get_columns(view)] for view in VIEWS}
    return {
        "own": OWN_SCHEMA,
        "by_job": {view: names for view, names in columns.items() if "job_id" in names},
        "whole": [view for view, names in columns.items() if "job_id" not in names],
        "aggregates": [(view, reveals.replace("'", "''")) for view, reveals in AGGREGATES.items()],
    }
