"""Time ranges that a report is about: how people write them, and axes over them. All times are UTC."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone

from pollux_slurm.document.charts.scales import Axis, Scale
from pollux_slurm.durations import LONGEST_DURATION, parse_duration
from pollux_slurm.errors import UsageError
from pollux_slurm.text import minute_text

_FORMS = "write 30d, 12h or 2w ago, or a time in UTC such as 2026-10-01 or 2026-10-01T12:00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """From `since` up to, but not at, `until`; both are aware times in UTC."""

    since: datetime
    until: datetime

    @property
    def is_of_whole_days(self) -> bool:
        """Whether it begins and ends at midnight in UTC."""
        return all(moment == midnight(moment.date()) for moment in (self.since, self.until))

    def days_text(self) -> str:
        """Return the days that it touches, for people: sums by day are of all of each."""
        first, last = self.since.date(), (self.until - timedelta(microseconds=1)).date()
        return f"whole days in UTC, {first}" + (f" to {last}" if first < last else "")

    def part_of(self, begin: datetime, end: datetime | None) -> tuple[float, float]:
        """Return the part within the range of what lasts from `begin` to `end`, None while it lasts.

        In seconds since 1970; of no length for what lies outside.
        """
        first = max(begin, self.since)
        last = self.until if end is None else min(end, self.until)
        return first.timestamp(), max(first, last).timestamp()

    def text(self) -> str:
        """Return both ends for people, to the minute."""
        return f"{minute_text(self.since)} to {minute_text(self.until)} UTC"


def parse_moment(text: str, *, now: datetime, option: str) -> datetime:
    """Return the moment that `text` names: so long before `now`, or a time, in UTC unless it has a zone.

    Raises `UsageError`, which names the `option`.
    """
    wanted = text.strip()
    if wanted == "now":
        return now
    if (ago := parse_duration(wanted)) is not None:
        if ago >= LONGEST_DURATION:
            raise UsageError(f"{option} {text!r} is a hundred years ago or more; {_FORMS}")
        return now - ago
    try:
        # Python 3.10 reads no Z.
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", wanted))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        return moment.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise UsageError(f"{option} {text!r} is not a time: {_FORMS}") from None


def parse_range(since: str, until: str | None, *, now: datetime) -> Range:
    """Return the range between two moments as people write them; it ends `now` by default and at the latest.

    Raises `UsageError` for what is not a time, begins in the future or is the wrong way round.
    """
    begin = parse_moment(since, now=now, option="--since")
    end = now if until is None else min(parse_moment(until, now=now, option="--until"), now)
    if begin >= now:
        raise UsageError(f"--since {since!r} lies in the future; {_FORMS}")
    if begin >= end:
        raise UsageError(
            f"--since {since!r} is not before --until {until!r}: "
            f"{minute_text(begin)} and {minute_text(end)} UTC"
        )
    return Range(since=begin, until=end)


def parse_span(text: str, *, now: datetime, option: str) -> Range:
    """Return the range that `FROM..TO` names. Raises `UsageError`, which names the `option`."""
    since, dots, until = text.partition("..")
    if not dots or not since or not until:
        raise UsageError(f"{option} {text!r} is not a span: write FROM..TO, such as 2026-09-01..2026-10-01")
    begin = parse_moment(since, now=now, option=option)
    end = parse_moment(until, now=now, option=option)
    if begin >= min(end, now):
        raise UsageError(f"{option} {text!r} does not end after its begin, or has not begun")
    return Range(since=begin, until=min(end, now))


def range_of(moments: Iterable[datetime], within: Range) -> Range:
    """Return the part of `within` that `moments` span, with some room at both ends; all of it for none."""
    found = [moment for moment in moments if within.since <= moment < within.until]
    if not found:
        return within
    first, last = min(found), max(found)
    room = max((last - first) / 50, timedelta(seconds=1))
    return Range(since=max(first - room, within.since), until=min(last + room, within.until))


def day_text(moment: datetime) -> str:
    """Return a day for people, such as 3 Nov."""
    return f"{moment.day} {moment:%b}"


def time_axis(moments: Iterable[datetime]) -> Axis:
    """Return an axis from the first to the last of `moments`; one, or none, makes a minute around it."""
    found = sorted(moments) or [datetime(1970, 1, 1, tzinfo=timezone.utc)]
    first, last = found[0], found[-1]
    if (last - first).total_seconds() < 1.0:
        first, last = first - timedelta(seconds=30), last + timedelta(seconds=30)
    within = first.date() == last.date()
    label = f"time (UTC), {day_text(first)} {first.year}" if within else "time (UTC)"
    return Axis(label=label, low=first.timestamp(), high=last.timestamp(), scale=Scale.TIME)


def midnight(day: date) -> datetime:
    """Return the begin of a day in UTC."""
    return datetime(day.year, day.month, day.day, tzinfo=timezone.utc)


def days_axis(days: Iterable[date], range_: Range) -> Axis:
    """Return an axis over whole days: those of the range and all that have a value."""
    found = [midnight(day) for day in days]
    first = min([*found, midnight(range_.since.date())])
    last = max([*found, midnight((range_.until - timedelta(microseconds=1)).date())])
    years = "" if first.year == last.year else f" to {last.year}"
    return Axis(
        label=f"day (UTC), {first.year}{years}",
        low=first.timestamp(),
        high=(last + timedelta(days=1)).timestamp(),
        scale=Scale.TIME,
    )
