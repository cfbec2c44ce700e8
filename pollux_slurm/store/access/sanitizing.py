"""Make values from outside fit for a database: texts without what it cannot hold, times with a zone."""

from __future__ import annotations

from datetime import datetime, timezone

from pollux_slurm.errors import UsageError

MAX_TEXT = 1024


def clean_text(text: str, *, most: int = MAX_TEXT) -> str:
    """Return `text` as both databases can keep it: no NUL, no lone surrogates, at most `most` characters.

    Job names come from strangers; one that cannot be encoded must not fail the whole round.
    """
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")[:most]


def utc(at: datetime) -> datetime:
    """Return an aware time in UTC; raises `UsageError` for one without a zone."""
    if at.tzinfo is None:
        raise UsageError(f"the store needs times with a zone, not {at!r}")
    return at.astimezone(timezone.utc)
