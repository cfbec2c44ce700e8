"""Parsers of options that take a duration, such as 90d or 12h; some also take plain seconds."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import typer

from pollux_slurm.durations import DURATION_FORMS, parse_duration
from pollux_slurm.errors import UsageError

LEAST_REFRESH_S = 0.5
"""A view that repeats itself does not read Slurm more often."""


def parse_span(text: str) -> timedelta:
    """Return the duration that `text` names; raises `UsageError` for another text, and for 0."""
    span = parse_duration(text)
    if not span:
        raise UsageError(f"{text!r} is not a duration; write {DURATION_FORMS}")
    return span


def seconds(*, least: float = 0.0, most: float | None = None) -> Callable[[str | float], float]:
    """Return a parser for typer: seconds, as a plain number or as a duration, from `least` to `most`."""

    def parse(given: str | float) -> float:
        text = str(given).strip()  # typer also passes the default
        span = parse_duration(text)
        if span is None and not re.fullmatch(r"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)", text):
            raise typer.BadParameter(
                f"{text!r} is not a time; write seconds as a plain number, or {DURATION_FORMS}"
            )
        found = float(text) if span is None else span.total_seconds()
        if found < least or (most is not None and found > most):
            bound = (
                f"from {least:g} to {most:g} seconds" if most is not None else f"{least:g} seconds or more"
            )
            raise typer.BadParameter(f"{text!r} is not {bound}")
        return found

    return parse
