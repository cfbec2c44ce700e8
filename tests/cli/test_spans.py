"""Spans of time as people type them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pollux_slurm.cli.spans import parse_span
from pollux_slurm.errors import UsageError


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("90d", timedelta(days=90)),
        (" 12h ", timedelta(hours=12)),
        ("2w", timedelta(days=14)),
        ("5m", timedelta(minutes=5)),
        ("999999w", timedelta(days=36500)),
    ],
)
def test_that_a_number_and_a_unit_are_a_span(text: str, span: timedelta) -> None:
    assert parse_span(text) == span


@pytest.mark.parametrize("text", ["", "90", "d", "-1d", "0d", "1.5d", "1d2h", "1 d", "9999999d", "\u0663d"])
def test_that_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no span of time"):
        parse_span(text)
