"""Values as people read them: numbers, durations, times, shares, and words that others chose.

Whatever shows a value (a log, a command, a page, a report) takes its text from here, so that all agree.

Whoever submits a job chooses its name, its Comment and what its reports say; Slurm and databases quote such
words in their messages. No character of them may move, hide or reorder others, or begin a line of its own.
"""

from __future__ import annotations

import logging
import math
import unicodedata
from collections.abc import Collection, Iterable
from datetime import datetime, timezone
from itertools import islice
from types import TracebackType

UNKNOWN = "–"
"""What stands for a value that is not known."""

# Zero-width (non-)joiners: Persian, Hindi and family emoji need them, and they reorder nothing.
_JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"
# Control, format (right-to-left overrides among them), surrogate, private, unassigned; ends of lines.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


# ----------------------------------------------------------------------------------------------------- values


def number_text(value: float | None) -> str:
    """Return three digits that matter, never an exponent below a billion.

    >>> [number_text(value) for value in (12345, 12.345, 0.5, -2, None)]
    ['12,345', '12.3', '0.500', '−2', '–']
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if isinstance(value, int) or (abs(value) < 1e9 and value == int(value)):
        return _with_minus(f"{int(value):,}")
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return _with_minus(f"{value:,.{digits}f}" if 0.001 <= abs(value) < 1e9 else f"{value:.3g}")


def range_text(values: Iterable[float]) -> str:
    """Return the least and the largest of some values as `2 to 4`, one number where they are the same.

    >>> range_text([4, 2, 3])
    '2 to 4'
    """
    several = list(values)
    low, high = number_text(min(several)), number_text(max(several))
    return low if low == high else f"{low} to {high}"


def duration_text(seconds: float | None) -> str:
    """Return a duration in its largest whole unit.

    >>> [duration_text(seconds) for seconds in (45, 72, 5400, 259200)]
    ['45 s', '1.2 min', '1.5 h', '3 d']
    """
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{_three_digits(seconds / unit_s)} {unit}"
    return f"{_three_digits(seconds)} s"


def ago_text(moment: datetime | None, now: datetime) -> str:
    """Return how long ago a moment was, to the second where that shows; one ahead of `now` is 0 s ago.

    >>> from datetime import timedelta
    >>> noon = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
    >>> ago_text(noon, noon + timedelta(minutes=90))
    '1.5 h ago'
    """
    return UNKNOWN if moment is None else f"{since_text(moment, now)} ago"


def since_text(moment: datetime, now: datetime) -> str:
    """Return the time from a moment to `now` as `ago_text` does, for `since 1.5 h`."""
    return duration_text(seconds_since(moment, now))


def seconds_since(moment: datetime, now: datetime) -> int:
    """Return whole seconds from a moment to `now`, 0 from one ahead of it."""
    return max(round((now - moment).total_seconds()), 0)


def moment_text(at: datetime | None) -> str:
    """Return a time to the second; its zone, UTC, stands beside it.

    >>> moment_text(datetime(2026, 11, 21, 11, 3, 7, tzinfo=timezone.utc))
    '2026-11-21 11:03:07'
    """
    return UNKNOWN if at is None else f"{at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}"


def minute_text(at: datetime) -> str:
    """Return a time to the minute, in UTC: an end of a range."""
    return f"{at.astimezone(timezone.utc):%Y-%m-%d %H:%M}"


def share_text(share: float | None) -> str:
    """Return a share of 1 in percent.

    >>> share_text(0.125)
    '12.5 %'
    """
    if share is None or not math.isfinite(share):
        return UNKNOWN
    # Adding 0.0 makes 0.0 of a rounded -0.0.
    return _with_minus(f"{round(100 * share, 1) + 0.0:.1f} %")


def change_text(change: float) -> str:
    """Return a relative change with its sign.

    >>> [change_text(change) for change in (0.2, -0.963, 0)]
    ['+20 %', '−96.3 %', '±0 %']
    """
    sign = "+" if change > 0 else "\N{MINUS SIGN}" if change < 0 else "±"
    return f"{sign}{number_text(round(abs(change) * 100, 6))} %"


def bytes_text(num_bytes: int | None) -> str:
    """Return a number of bytes.

    >>> bytes_text(302_000_000)
    '302 MB'
    """
    if num_bytes is None:
        return UNKNOWN
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if num_bytes >= size:
            value = num_bytes / size
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{-(-num_bytes // 1000)} kB"


def plural(number: int, one: str, several: str | None = None) -> str:
    """Return a count with its noun: 1 job, 2 jobs, 1,024 jobs."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def some_of(words: Collection[str], most: int) -> str:
    """Return words as a list: the first `most`, and how many more there are.

    >>> [some_of(["n1", "n2", "n3"][:number], 2) for number in (0, 2, 3)]
    ['none', 'n1, n2', 'n1, n2 and 1 more']
    """
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return (", ".join(islice(words, most)) or "none") + more


def _three_digits(value: float) -> str:
    return _with_minus(f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}")


def _with_minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


# ------------------------------------------------------------------------------------------------------ words


def shown(text: str) -> str:
    """Return `text` with a replacement character for each that moves, hides or reorders others."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in _JOINERS or unicodedata.category(char) not in _HIDDEN else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def shown_lines(text: str) -> str:
    """Return a text whose line feeds are meant, with each of its lines as `shown`."""
    return "\n".join(map(shown, text.split("\n")))


def one_line(text: str) -> str:
    """Return a text as `shown`, on one line: its ends of lines become spaces."""
    return shown(" ".join(text.split()))


def shortened(text: str, most: int = 44) -> str:
    """Return a text that has room: its beginning, where it is longer than `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


# ------------------------------------------------------------------------------------------------------ logs


class LineFormatter(logging.Formatter):
    """Formats each record as one line, with its traceback indented below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - it overrides logging's
        """Return the line of a record."""
        return one_line(super().formatMessage(record))

    def formatException(  # noqa: N802
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """Return the lines of a traceback, in which a message may have several."""
        return "\n".join(f"  {shown(line)}" for line in super().formatException(ei).splitlines())


def log_lines() -> None:
    """Write each warning that no other handler takes as one line to stderr."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LineFormatter("pollux: %(message)s"))
