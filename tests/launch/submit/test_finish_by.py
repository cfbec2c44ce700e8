"""Moments as users type them for --finish-by."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from pollux_slurm.durations import parse_finish_by
from pollux_slurm.errors import UsageError

BERLIN = ZoneInfo("Europe/Berlin")
# A Friday, in the last hour of which Berlin has Saturday; summer time ends there in the night to Sunday.
NOW = datetime(2026, 10, 23, 22, 30, tzinfo=timezone.utc)


def utc(year: int, month: int, day: int, hour: int, minute: int, second: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("8h", NOW + timedelta(hours=8)),
        ("1.5d", NOW + timedelta(hours=36)),
        ("09:00", utc(2026, 10, 24, 7, 0)),
        ("00:10", utc(2026, 10, 24, 22, 10)),
        ("00:45", utc(2026, 10, 23, 22, 45)),
        ("Mon 09:00", utc(2026, 10, 26, 8, 0)),
        ("monday 9:00:30", utc(2026, 10, 26, 8, 0, 30)),
        ("sat 00:31", utc(2026, 10, 23, 22, 31)),
        ("Sat 00:30", utc(2026, 10, 30, 23, 30)),
        ("2026-12-01 09:00", utc(2026, 12, 1, 8, 0)),
        ("2026-12-01T09:00:05", utc(2026, 12, 1, 8, 0, 5)),
        ("2026-12-01T09:00-02:00", utc(2026, 12, 1, 11, 0)),
        ("2026-12-01T09:00Z", utc(2026, 12, 1, 9, 0)),
    ],
)
def test_that_a_moment_is_the_next_one_in_local_time(text: str, moment: datetime) -> None:
    found = parse_finish_by(text, now=NOW, zone=BERLIN)
    assert found == moment
    assert found.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "25:00", "Mon", "Foo 09:00", "2026-12-01", "2026-13-01 09:00", "-8h"),
        *("9999-12-31 23:59", "9999-12-31T23:59-02:00", "5138-01-01 09:00", "1970-01-01 09:00"),
    ],
)
def test_that_an_unreadable_moment_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(UsageError, match=r"--finish-by takes 'Mon 09:00' or .* such as 8h; .*; not "):
        parse_finish_by(text, now=NOW, zone=BERLIN, may_be_past=True)


def test_that_a_moment_in_the_past_is_refused_unless_it_may_be() -> None:
    with pytest.raises(
        UsageError, match="'2026-10-24 00:30' is in the past: that is 2026-10-23 22:30:00 UTC"
    ):
        parse_finish_by("2026-10-24 00:30", now=NOW, zone=BERLIN)
    assert parse_finish_by("2026-10-24 00:30", now=NOW, zone=BERLIN, may_be_past=True) == NOW


def test_that_without_a_zone_the_time_is_the_hosts() -> None:
    local = datetime.fromisoformat("2026-12-01 09:00").astimezone()
    assert parse_finish_by("2026-12-01 09:00", now=NOW) == local
