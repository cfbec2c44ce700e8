"""Durations as users type them, in all commands."""

from __future__ import annotations

from datetime import timedelta

import pytest
import typer

from pollux_slurm.cli.shared.duration_options import parse_span, seconds
from pollux_slurm.errors import UsageError
from tests.cli.inside import pollux


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("90d", timedelta(days=90)),
        (" 12h ", timedelta(hours=12)),
        ("2w", timedelta(days=14)),
        ("5m", timedelta(minutes=5)),
        ("5min", timedelta(minutes=5)),
        ("70s", timedelta(seconds=70)),
        ("1.5h", timedelta(minutes=90)),
        ("999999w", timedelta(days=36500)),
    ],
)
def test_that_a_number_and_a_unit_are_a_duration(text: str, span: timedelta) -> None:
    assert parse_span(text) == span
    assert seconds()(text) == span.total_seconds()


@pytest.mark.parametrize("text", ["", "90", "d", "-1d", "0d", "1.d", "1d2h", "1:30", "\u0663d"])
def test_that_anything_else_is_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(
        UsageError, match="is not a duration; write a number with s, m, h, d or w, such as 90s"
    ):
        parse_span(text)


def test_that_an_option_in_seconds_takes_a_plain_number_and_every_duration() -> None:
    read = seconds(least=0.5, most=100)
    assert [read(given) for given in (60.0, "60", "0.5", "70s", "1m", "1.5 m")] == [60, 60, 0.5, 70, 60, 90]
    for text in ("", "soon", "1:30", "nan", "1e1"):
        with pytest.raises(
            typer.BadParameter, match="write seconds as a plain number, or a number with s, m"
        ):
            read(text)
    for text in ("0", "0.4", "-5", "2m"):
        with pytest.raises(typer.BadParameter, match=r"is not from 0\.5 to 100 seconds"):
            read(text)


@pytest.mark.parametrize(
    "words",
    [
        ("daemon", "--interval"),
        ("pause", "1", "--wait"),
        ("resume", "1", "--wait"),
        ("drain", "1", "--wait"),
        ("run", "--kill-after"),
        ("sandbox", "up", "--timeout"),
        ("rehearse", "--time"),
        ("db", "prune", "--older-than"),
        ("report", "cluster", "--since"),
    ],
)
def test_that_every_command_refuses_an_invalid_duration_in_the_same_way(words: tuple[str, ...]) -> None:
    done = pollux(*words, "5 fortnights", *(["--", "true"] if words[0] in ("run", "rehearse") else []))
    assert done.returncode == 2
    assert "'5 fortnights'" in done.stderr
    assert "write" in done.stderr
