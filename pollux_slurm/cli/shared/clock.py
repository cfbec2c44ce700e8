"""The time of commands: each reads it here, once, and passes it on."""

from __future__ import annotations

from datetime import datetime, timezone


def now() -> datetime:
    """Return the present time, in UTC."""
    return datetime.now(timezone.utc)
