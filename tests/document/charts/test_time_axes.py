"""Time ranges as people write them, and axes over them."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import pytest

from pollux_slurm.document.charts.time_axes import Range, days_axis, parse_range, range_of, time_axis
from pollux_slurm.errors import UsageError

NOW = datetime(2026, 11, 21, 11, 3, 7, tzinfo=timezone.utc)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=timezone.utc)  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("since", "begin"),
    [
        ("30d", NOW - timedelta(days=30)),
        ("1.5h", NOW - timedelta(minutes=90)),
        (" 2w ", NOW - timedelta(days=14)),
        ("90m", NOW - timedelta(minutes=90)),
        ("2026-10-01", utc(2026, 10, 1)),
        ("2026-10-01T12:30", utc(2026, 10, 1, 12, 30)),
        ("2026-10-01T12:30Z", utc(2026, 10, 1, 12, 30)),
        ("2026-10-01T12:30+02:00", utc(2026, 10, 1, 10, 30)),
    ],
)
def test_that_a_range_begins_where_people_say(since: str, begin: datetime) -> None:
    assert parse_range(since, None, now=NOW) == Range(since=begin, until=NOW)


def test_that_a_range_ends_where_people_say() -> None:
    found = parse_range("2026-10-01", "2026-11-01", now=NOW)
    assert (found.since, found.until) == (utc(2026, 10, 1), utc(2026, 11, 1))
    assert found.text() == "2026-10-01 00:00 to 2026-11-01 00:00 UTC"
    assert parse_range("2d", "1d", now=NOW).until == NOW - timedelta(days=1)
    assert parse_range("2d", "now", now=NOW).until == NOW


@pytest.mark.parametrize("until", ["2026-11-22", "9999-12-31T12:00"])
def test_that_a_range_does_not_go_on_after_now(until: str) -> None:
    assert parse_range("2d", until, now=NOW) == parse_range("2d", None, now=NOW)


@pytest.mark.parametrize(
    ("since", "until", "words"),
    [
        ("yesterday", None, "--since 'yesterday' is not a time: write 30d"),
        ("", None, "--since '' is not a time"),
        ("-3d", None, "is not a time"),
        ("30", None, "is not a time"),
        ("9999999d", None, "a hundred years ago or more"),
        ("9" * 400 + "d", None, "a hundred years ago or more"),
        ("0001-01-01T00:00+23:00", None, "is not a time"),
        ("2027-01-01", None, "lies in the future"),
        ("0d", None, "lies in the future"),
        ("7d", "8d", "--since '7d' is not before --until '8d'"),
        ("7d", "later", "--until 'later' is not a time"),
    ],
)
def test_that_what_is_no_range_is_refused_with_what_to_write(
    since: str, until: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words.replace("(", "\\(")):
        parse_range(since, until, now=NOW)


@pytest.mark.parametrize(
    ("length", "label"),
    [(timedelta(seconds=20), "time (UTC), 21 Nov 2026"), (timedelta(hours=30), "time (UTC)")],
)
def test_that_an_axis_of_time_names_the_day_that_it_is_within(length: timedelta, label: str) -> None:
    axis = time_axis([NOW - length, NOW])
    assert axis.label == label
    assert (axis.at((NOW - length).timestamp()), axis.at(NOW.timestamp())) == (0, 1)


def test_that_one_moment_makes_an_axis_of_a_minute() -> None:
    axis = time_axis([NOW])
    assert (axis.high - axis.low, axis.at(NOW.timestamp())) == (60, 0.5)


def test_that_an_axis_of_days_holds_all_of_each() -> None:
    range_ = Range(since=utc(2026, 11, 2, 12), until=utc(2026, 11, 4, 12))
    axis = days_axis([date(2026, 11, 1)], range_)
    assert (axis.low, axis.high) == (utc(2026, 11, 1).timestamp(), utc(2026, 11, 5).timestamp())
    assert axis.label == "day (UTC), 2026"
    until_midnight = Range(since=utc(2026, 11, 1), until=utc(2026, 11, 2))
    assert days_axis([], until_midnight).high == utc(2026, 11, 2).timestamp(), "a day, not two"


def test_that_an_axis_of_days_names_its_years() -> None:
    axis = days_axis([], Range(since=utc(2024, 1, 1), until=utc(2026, 12, 31)))
    assert axis.label == "day (UTC), 2024 to 2026"


def test_that_a_range_of_moments_is_what_they_span_with_some_room() -> None:
    month = Range(since=NOW - timedelta(days=30), until=NOW)
    first, last = NOW - timedelta(minutes=150), NOW - timedelta(minutes=50)
    assert range_of([last, first, last], month) == Range(
        since=first - timedelta(minutes=2), until=last + timedelta(minutes=2)
    )
    assert range_of([first, NOW - timedelta(days=31)], month) == Range(
        since=first - timedelta(seconds=1), until=first + timedelta(seconds=1)
    )
    assert range_of([month.since, NOW - timedelta(microseconds=1)], month) == month
    assert range_of([NOW], month) == range_of([], month) == month
