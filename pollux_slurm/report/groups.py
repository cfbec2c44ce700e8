"""How accounts and users are shown beside each other."""

from __future__ import annotations

MOST_GROUPS = 7
"""So many have a style of their own; the others are added up."""

NAMELESS = "(none)"
"""The account of jobs that are charged to none."""
