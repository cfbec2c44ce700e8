"""Make texts that others chose safe to show: on a terminal, in a page and in a log.

Whoever submits a job chooses its name, its Comment and what its reports say; Slurm and databases quote such
texts in their messages. No character of them may move, hide or reorder others, or begin a line of its own.
"""

from __future__ import annotations

import logging
import unicodedata
from types import TracebackType

# Zero-width (non-)joiners: Persian, Hindi and family emoji need them, and they reorder nothing.
_JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"
# Control, format (right-to-left overrides among them), surrogate, private, unassigned; ends of lines.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


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


def log_lines(lines: str = "pollux: %(message)s") -> None:
    """Write each warning that no other handler takes as one line to stderr, in the form `lines`."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LineFormatter(lines))


def shortened(text: str, most: int = 44) -> str:
    """Return a text that has room: its beginning, where it is longer than `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def plural(number: int, one: str, several: str | None = None) -> str:
    """Return a count with its noun: 1 job, 2 jobs, 1,024 jobs."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
