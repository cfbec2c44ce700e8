"""Make untrusted texts safe to show: no markup, no control characters, no invisible characters."""

from __future__ import annotations

import unicodedata
from html import escape

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


def safe(text: str) -> str:
    """Return `text` as it may stand in HTML and SVG, in an attribute, too."""
    return escape(shown(text))


def shortened(text: str, most: int = 44) -> str:
    """Return a text that has room: its beginning, where it is longer than `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def plural(number: int, one: str, several: str | None = None) -> str:
    """Return a count with its noun: 1 job, 2 jobs, 1,024 jobs."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
