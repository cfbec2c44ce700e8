"""Time ranges as people write them, and axes over them."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.errors import UsageError
from pollux_slurm.report.charts.time_axes import Range, days_axis, parse_range, range_of, time_axis

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


@pytest.mark.parametrize(
    ("since", "until", "words"),
    [
        ("yesterday", None, "--since 'yesterday' is no time: write 30d"),
        ("", None, "--since '' is no time"),
        ("-3d", None, "is no time"),
        ("30", None, "is no time"),
        ("9999999d", None, "a hundred years ago or more"),
        ("9" * 400 + "d", None, "a hundred years ago or more"),
        ("0001-01-01T00:00+23:00", None, "is no time"),
        ("2027-01-01", None, "lies in the future"),
        ("0d", None, "lies in the future"),
        ("7d", "8d", "--since '7d' is not before --until '8d'"),
        ("7d", "later", "--until 'later' is no time"),
    ],
)
def test_that_what_is_no_range_is_refused_with_what_to_write(
    since: str, until: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words.replace("(", "\\(")):
        parse_range(since, until, now=NOW)


@pytest.mark.parametrize(
    ("length", "label", "ticks"),
    [
        (timedelta(seconds=20), "time (UTC), 21 Nov 2026", ["11:02:50", "11:02:55", "11:03:00", "11:03:05"]),
        (
            timedelta(hours=3),
            "time (UTC), 21 Nov 2026",
            ["08:30", "09:00", "09:30", "10:00", "10:30", "11:00"],
        ),
        (timedelta(hours=30), "time (UTC)", ["06:00", "12:00", "18:00", "21 Nov", "06:00"]),
        (timedelta(days=9), "time (UTC)", ["14 Nov", "16 Nov", "18 Nov", "20 Nov"]),
        (timedelta(days=160), "time (UTC)", ["Jul 2026", "Aug 2026", "Sep 2026", "Oct 2026", "Nov 2026"]),
    ],
)
def test_that_ticks_are_round_times(length: timedelta, label: str, ticks: list[str]) -> None:
    axis = time_axis([NOW - length, NOW])
    assert (axis.label, [text for _, text in axis.ticks]) == (label, ticks)
    assert (axis.at((NOW - length).timestamp()), axis.at(NOW.timestamp())) == (0, 1)


@given(
    begin=st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(9000, 1, 1)),  # noqa: DTZ001
    seconds=st.floats(min_value=0, max_value=1e10),
)
def test_that_any_range_has_few_ticks_in_order_within_it(begin: datetime, seconds: float) -> None:
    first = begin.replace(tzinfo=timezone.utc)
    axis = time_axis([first, first + timedelta(seconds=seconds)])
    moments = [moment for moment, _ in axis.ticks]
    assert axis.low < axis.high
    assert moments == sorted(set(moments))
    assert len(moments) <= 10
    assert all(axis.low <= moment <= axis.high for moment in moments)


def test_that_an_axis_of_days_holds_all_of_each() -> None:
    range_ = Range(since=utc(2026, 11, 2, 12), until=utc(2026, 11, 4, 12))
    axis = days_axis([date(2026, 11, 1)], range_)
    assert (axis.low, axis.high) == (utc(2026, 11, 1).timestamp(), utc(2026, 11, 5).timestamp())
    assert [text for _, text in axis.ticks] == ["1 Nov", "2 Nov", "3 Nov", "4 Nov"]
    assert axis.at(axis.ticks[0][0]) == pytest.approx(1 / 8), "the middle of the first of four days"
    assert axis.label == "day (UTC), 2026"
    until_midnight = Range(since=utc(2026, 11, 1), until=utc(2026, 11, 2))
    assert days_axis([], until_midnight).high == utc(2026, 11, 2).timestamp(), "a day, not two"


def test_that_years_of_days_have_few_ticks() -> None:
    axis = days_axis([], Range(since=utc(2024, 1, 1), until=utc(2026, 12, 31)))
    assert len(axis.ticks) <= 10
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
