"""Untrusted texts are shown without control characters and markup."""

from __future__ import annotations

import pytest

from pollux_slurm.report.charts.safe_texts import plural, safe, shortened, shown

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


def test_that_html_is_text() -> None:
    assert (
        safe("<a href='x' title=\"y\">&\x07") == f"&lt;a href=&#x27;x&#x27; title=&quot;y&quot;&gt;&amp;{BOX}"
    )


def test_that_long_texts_and_counts_are_short() -> None:
    assert (shortened("abcdef", 4), shortened("abcd", 4)) == ("abc…", "abcd")
    assert (plural(1, "job"), plural(2048, "job"), plural(0, "entry", "entries")) == (
        "1 job",
        "2,048 jobs",
        "0 entries",
    )
