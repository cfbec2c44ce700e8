"""Durations as users type them in all commands: 90s, 5m, 1.5h, 30d, 2w.

`pollux_slurm.slurm.sbatch.request` parses Slurm's forms of a time limit.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from pollux_slurm.errors import UsageError

DURATION_FORMS = "a number with s, m, h, d or w, such as 90s, 5m, 1.5h, 30d or 2w"

# Longer durations are cut to this, since a date before year 1 cannot be represented.
LONGEST_DURATION = timedelta(days=365 * 100)

_UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|m|h|d|w)")


def parse_duration(text: str) -> timedelta | None:
    """Return the duration that `text` names, at most `LONGEST_DURATION`; None if it names none."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        return None
    return timedelta(seconds=min(float(found[1]) * _UNITS_S[found[2]], LONGEST_DURATION.total_seconds()))


def parse_min_run(text: str) -> float:
    """Return how long a job is to run undisturbed, in seconds: infinite for `always`. Raises `UsageError`."""
    if text.strip() == "always":
        return math.inf
    duration = timedelta(0) if text.strip() == "0" else parse_duration(text)
    if duration is None:
        raise UsageError(f"--min-run takes {DURATION_FORMS}, or always, not {text!r}")
    return float(math.ceil(duration.total_seconds()))
