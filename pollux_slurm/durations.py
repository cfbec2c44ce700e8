"""Durations as people type them, in one way in all commands: 90s, 5m, 1.5h, 30d, 2w.

Slurm's own forms of a time limit are `pollux_slurm.slurm.sbatch.request`'s.
"""

from __future__ import annotations

import re
from datetime import timedelta

DURATION_FORMS = "a number with s, m, h, d or w, such as 90s, 5m, 1.5h, 30d or 2w"

# What is longer counts as this: nothing here is older, and a longer way back would leave the calendar.
LONGEST_DURATION = timedelta(days=365 * 100)

_UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|m|h|d|w)")


def parse_duration(text: str) -> timedelta | None:
    """Return the duration that `text` names, `LONGEST_DURATION` at most; None for what is no duration."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        return None
    return timedelta(seconds=min(float(found[1]) * _UNITS_S[found[2]], LONGEST_DURATION.total_seconds()))
