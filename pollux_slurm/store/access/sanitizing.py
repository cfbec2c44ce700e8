"""Make values from outside storable: texts that both databases accept, and times with a zone."""

from __future__ import annotations

from datetime import datetime, timezone

from pollux_slurm.errors import UsageError

MAX_TEXT = 1024


def clean_text(text: str, *, max_length: int = MAX_TEXT) -> str:
    """Return `text` without NUL and lone surrogates, at max_length `max_length` characters long.

    Users choose job names; one that cannot be encoded must not fail the whole round.
    """
    if text.isascii() and "\0" not in text:
        return text[:max_length]
    return (
        text.encode("utf-8", "replace")
        .decode("utf-8")
        .replace("\0", "\N{REPLACEMENT CHARACTER}")[:max_length]
    )


def utc(at: datetime) -> datetime:
    """Return an aware time in UTC; raises `UsageError` for a naive one."""
    if at.tzinfo is None:
        raise UsageError(f"the store needs times with a zone, not {at!r}")
    return at.astimezone(timezone.utc)
