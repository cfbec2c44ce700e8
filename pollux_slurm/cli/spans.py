"""Spans of time as people type them: 90d, 12h, 2w."""

from __future__ import annotations

import re
from datetime import timedelta

from pollux_slurm.errors import UsageError

_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_MOST = timedelta(days=365 * 100)


def parse_span(text: str) -> timedelta:
    """Return the span that `text` names: a whole number above 0 and one of m, h, d, w; else `UsageError`."""
    found = re.fullmatch(r"([0-9]{1,6})([mhdw])", text.strip())
    span = timedelta(0) if found is None else min(int(found[1]) * _UNITS[found[2]], _MOST)
    if span <= timedelta(0):
        raise UsageError(f"{text!r} is no span of time; write a number with m, h, d or w, such as 90d or 12h")
    return span
