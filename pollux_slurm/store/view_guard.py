"""Whom a reporting view shows what, on PostgreSQL: a person their own jobs, by `session_user`.

Each view of `sql/views/` is made with `security_barrier`, so that no function in a query sees a row before
the filter did. Its rows must have a `user_name`, or the view must be named here as one of `AGGREGATES`, with
what these reveal of single people: a new view that is neither cannot be made. Owners, superusers,
`pollux_daemon` and `pollux_analyst` see everything. Views read other views through the same filter.
"""

from __future__ import annotations

import re

from pollux_slurm.errors import StoreError

AGGREGATES = {
    "account_usage": "Shown whole to every reader: an account with one user reveals that user's usage.",
    "calendar": "Shown whole to every reader: days, and nothing that is anybody's.",
    "node_usage": "Shown whole to every reader: how busy each node was, not with whose jobs.",
    "round_history": "Shown whole to every reader: how many jobs were decided about, not whose.",
}
"""Views without a `user_name`, and what they reveal: it becomes the view's comment."""

_SEES_ALL = """(
    SELECT bool_or(pg_has_role(session_user, r.oid, 'MEMBER'))
    FROM pg_catalog.pg_roles AS r
    WHERE r.rolname IN ('pollux_analyst', 'pollux_daemon')
       OR r.oid = (SELECT c.relowner FROM pg_catalog.pg_class AS c WHERE c.oid = 'jobs'::regclass)
)"""
_HEADER = re.compile(r"^CREATE VIEW (?P<name>\w+) AS\s+", re.MULTILINE)


def guarded_view(text: str) -> str:
    """Return the CREATE VIEW statement `text` with the barrier and, unless it is an aggregate, the filter."""
    header = _HEADER.search(text)
    if header is None:
        raise StoreError(f"a reporting view begins with CREATE VIEW name AS, not {text[:60]!r}")
    comments, name, body = text[: header.start()], header["name"], text[header.end() :]
    if name in AGGREGATES:
        return f"{comments}CREATE VIEW {name} WITH (security_barrier) AS\n{body}"
    return (
        f"{comments}-- Shows a person's own rows, by session_user, unless granted more.\n"
        f"CREATE VIEW {name} WITH (security_barrier) AS\nSELECT v.*\nFROM (\n{body}\n) AS v\n"
        f"WHERE v.user_name = session_user OR {_SEES_ALL}"
    )
