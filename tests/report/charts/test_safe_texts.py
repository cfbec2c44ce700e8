"""Texts that others chose are shown without control characters, and in a log as one line."""

from __future__ import annotations

import logging
import sys

import pytest

from pollux_slurm.safe_texts import LineFormatter, one_line, plural, shortened, shown, shown_lines

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
