"""Durations as users type them in all commands: 90s, 5m, 1.5h, 30d, 2w; and moments: Mon 09:00.

`pollux_slurm.slurm.sbatch.request` parses Slurm's forms of a time limit.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, time, timedelta, timezone, tzinfo

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


MOMENT_FORMS = (
    "'Mon 09:00' or '09:00' (the next one), '2026-12-01 09:00', or a duration from now such as 8h; in local "
    "time, unless an offset follows: 2026-12-01T09:00+01:00; in the years 1971 to 5137"
)
# Those that a job's Comment can hold in full.
_YEARS = range(1971, 5138)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK = re.compile(r"(?:([A-Za-z]{3,9})\s+)?([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")


def parse_finish_by(
    text: str, *, now: datetime, zone: tzinfo | None = None, may_be_past: bool = False
) -> datetime:
    """Return the moment of `--finish-by` in UTC, to the second; `zone` None is that of this host.

    Raises `UsageError` for a text that names none, and, unless it `may_be_past`, for one not ahead of `now`.
    """
    try:
        found = _parse_moment(text.strip(), now, zone)
        found = found and found.astimezone(timezone.utc).replace(microsecond=0)
    except (ValueError, OverflowError):
        found = None
    if found is None or found.year not in _YEARS:
        raise UsageError(f"--finish-by takes {MOMENT_FORMS}; not {text!r}")
    if found <= now and not may_be_past:
        raise UsageError(f"--finish-by {text!r} is in the past: that is {found:%Y-%m-%d %H:%M:%S} UTC")
    return found


def _parse_moment(text: str, now: datetime, zone: tzinfo | None) -> datetime | None:
    if (duration := parse_duration(text)) is not None:
        return now + duration
    if (clock := _CLOCK.fullmatch(text)) is None:
        return _in_zone(datetime.fromisoformat(text.replace("Z", "+00:00")), zone) if ":" in text else None
    day, at = clock[1], time(int(clock[2]), int(clock[3]), int(clock[4] or 0))
    weekdays = (
        [number for number, name in enumerate(_WEEKDAYS) if name.startswith(day.lower())] if day else []
    )
    if day and not weekdays:
        return None
    today = now.astimezone(zone).date()
    dates = (today + timedelta(days=ahead) for ahead in range(8))
    moments = (
        _in_zone(datetime.combine(date, at), zone) for date in dates if not day or date.weekday() in weekdays
    )
    return next(moment for moment in moments if moment > now)


def _in_zone(moment: datetime, zone: tzinfo | None) -> datetime:
    """Return a moment with its own offset, else in `zone`, or in that of this host."""
    if moment.tzinfo is not None:
        return moment
    return moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
