"""Values as people read them; words of others without control characters, in a log as one line."""

from __future__ import annotations

import doctest
import logging
import sys
from datetime import datetime, timedelta, timezone

import pytest

from pollux_slurm import text
from pollux_slurm.text import (
    UNKNOWN,
    LineFormatter,
    ago_text,
    bytes_text,
    duration_text,
    number_text,
    one_line,
    plural,
    share_text,
    shortened,
    shown,
    shown_lines,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
BOX = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("plain", "plain"),
        ("a\x00b\x1b[31m\n", f"a{BOX}b{BOX}[31m{BOX}"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}txt.exe", f"{BOX}txt.exe"),
        ("zero\N{ZERO WIDTH SPACE}width", f"zero{BOX}width"),
        ("שלום عليكم", "שלום عليكم"),
        ("می\N{ZERO WIDTH NON-JOINER}خواهم", "می\N{ZERO WIDTH NON-JOINER}خواهم"),
        ("ρ\N{NO-BREAK SPACE}> 1 · 日本", "ρ\N{NO-BREAK SPACE}> 1 · 日本"),
        ("lone \udc80", f"lone {BOX}"),
    ],
)
def test_that_only_what_moves_or_hides_others_is_replaced(written: str, seen: str) -> None:
    assert shown(written) == seen


def test_that_ends_of_lines_that_are_meant_stay_and_others_are_replaced() -> None:
    assert (
        shown_lines("one\n\n  two\r\nthree\x85\N{LINE SEPARATOR}\n")
        == f"one\n\n  two{BOX}\nthree{BOX}{BOX}\n"
    )
    assert one_line(" job 1:\n\tfirst\r\nsecond\x85\x1b[2J ") == f"job 1: first second {BOX}[2J"


def test_that_a_record_is_a_line_and_its_traceback_is_indented() -> None:
    try:
        raise ValueError("first\n2026-01-01 INFO forged\x1b[2J")
    except ValueError:
        record = logging.LogRecord("x", logging.INFO, "", 0, "job %s", ("1\nINFO forged",), sys.exc_info())
    head, *rest = LineFormatter("%(levelname)s %(message)s").format(record).split("\n")
    assert head == "INFO job 1 INFO forged"
    assert rest[0] == "  Traceback (most recent call last):"
    assert rest[-2:] == ["  ValueError: first", f"  2026-01-01 INFO forged{BOX}[2J"]


def test_that_long_texts_and_counts_are_short() -> None:
    assert (shortened("abcdef", 4), shortened("abcd", 4)) == ("abc…", "abcd")
    assert (plural(1, "job"), plural(2048, "job"), plural(0, "entry", "entries")) == (
        "1 job",
        "2,048 jobs",
        "0 entries",
    )


def test_that_the_examples_are_true() -> None:
    found = doctest.testmod(text)
    assert (found.failed, found.attempted >= 10) == (0, True)


def test_that_bytes_are_written_for_people() -> None:
    sizes = (0, 1, 1000, 2_003_357, 302_000_000, 9_949_999_999, 12 * 10**12)
    texts = ["0 kB", "1 kB", "1 kB", "2.0 MB", "302 MB", "9.9 GB", "12 TB"]
    assert [bytes_text(size) for size in sizes] == texts


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (45, "45 s"), (60, "1 min"), (5400, "1.5 h"), (864000, "10 d")]
)
def test_that_durations_are_short(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_that_a_moment_is_so_long_ago_and_never_ahead() -> None:
    assert ago_text(NOON, NOON + timedelta(days=49.5)) == "49.5 d ago"
    assert ago_text(NOON, NOON - timedelta(seconds=7)) == "0 s ago"


def test_that_what_is_not_known_or_no_number_is_a_dash() -> None:
    for value in (None, float("nan"), float("inf")):
        assert [number_text(value), duration_text(value), share_text(value)] == [UNKNOWN] * 3
    assert [ago_text(None, NOON), bytes_text(None)] == [UNKNOWN] * 2
