"""Colours and dashes. A chart has CSS variables, such as var(--s0); a page resolves them, light or dark.

A picture in a file has the colours for paper instead.
"""

from __future__ import annotations

import re

SERIES = tuple(f"var(--s{index})" for index in range(8))
"""The colour of each style of a line or bar. Beyond eight, styles repeat."""

DASHES: tuple[tuple[float, ...], ...] = (
    (1, 0),
    (9, 4),
    (3, 3),
    (12, 3, 3, 3),
    (6, 2),
    (1.5, 3),
    (14, 5),
    (9, 3, 2, 3, 2, 3),
)
"""The dashes of each style, so that no line is told from another by its colour alone."""

CLASSES = tuple(f"var(--g{index})" for index in range(6))
"""The colours of numbers of GPUs, from one to many."""

PAGE, TEXT, SOFT, GRID, WAITING = (f"var(--{name})" for name in ("page", "text", "soft", "grid", "waiting"))

LIGHT = {
    **{
        "page": "#ffffff",
        "text": "#1c2024",
        "soft": "#59626b",
        "rule": "#d5dadf",
        "grid": "#e6e9ec",
        "band": "#f4f6f8",
    },
    **{"link": "#0b5cad", "waiting": "#9aa3ab"},
    **{"s0": "#0072b2", "s1": "#c14a00", "s2": "#007a5a", "s3": "#a3427c"},
    **{"s4": "#8a6100", "s5": "#3d3d3d", "s6": "#2b8fc9", "s7": "#7a5195"},
    **{"g0": "#b9dcc0", "g1": "#86cbb5", "g2": "#45b0bd", "g3": "#2a86b5", "g4": "#27569d", "g5": "#1d2b6b"},
}
DARK = {
    **{
        "page": "#14171a",
        "text": "#e8eaed",
        "soft": "#a4adb6",
        "rule": "#3a4148",
        "grid": "#2a3036",
        "band": "#1c2024",
    },
    **{"link": "#7cc0ff", "waiting": "#6b747d"},
    **{"s0": "#5ab4f0", "s1": "#ff8f4d", "s2": "#3ecf9f", "s3": "#ee93c8"},
    **{"s4": "#e9c04a", "s5": "#d6d9dc", "s6": "#9adcf9", "s7": "#c3a4e8"},
    **{"g0": "#47708f", "g1": "#3a86a0", "g2": "#2f97a4", "g3": "#52c0a8", "g4": "#a2dd98", "g5": "#f4f6a5"},
}


def on_paper(text: str) -> str:
    """Return a text, such as a chart in JSON, with the colours for paper in place of the variables."""
    return re.sub(r"var\(--(\w+)\)", lambda found: LIGHT[found[1]], text)
