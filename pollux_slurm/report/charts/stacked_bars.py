"""Stacked bars over time as SVG text, such as GPU hours by account and day."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pollux_slurm.report.charts.line_charts import (
    NUM_STYLES,
    WIDTH,
    Box,
    legend_rows,
    panel_frame,
    svg_element,
)
from pollux_slurm.report.charts.safe_texts import safe, shortened
from pollux_slurm.report.charts.scales import Axis

_WIDEST = 90.0
# Narrower bars have no edge between them: it would be all that is seen.
_EDGED = 4.0
_LEFT, _RIGHT, _BOTTOM = 64.0, 16.0, 46.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The bar from `low` to `high` on the x axis; `parts` are its heights, one for each label, from below."""

    name: str
    low: float
    high: float
    parts: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedBars:
    """A bar for each interval of the x axis. `text` describes the chart in words.

    `styles` are those of the labels, by default 0, 1, ...; `value_text` formats a part's value for its
    tooltip. Beyond eight, labels share styles: group the smallest before.
    """

    title: str
    text: str
    x: Axis
    y: Axis
    labels: tuple[str, ...]
    stacks: tuple[Stack, ...]
    styles: tuple[int, ...] = ()
    value_text: Callable[[float], str] = "{:,.3g}".format
    height: float = 280.0

    def svg(self, name: str) -> str:
        """Return the chart as an SVG element; `name` makes its ids unique on the page."""
        styles = self.styles or tuple(range(len(self.labels)))
        legend, top = legend_rows(
            [(shortened(label), style, "bar") for label, style in zip(self.labels, styles, strict=True)]
        )
        box = Box(left=_LEFT, top=top, width=WIDTH - _LEFT - _RIGHT, height=self.height)
        parts = [
            legend,
            panel_frame(self.x, self.y, box),
            *(self._stack(stack, styles, box) for stack in self.stacks),
        ]
        return svg_element(name, self.title, self.text, box.bottom + _BOTTOM, "".join(parts))

    def _stack(self, stack: Stack, styles: tuple[int, ...], box: Box) -> str:
        left, right = box.x(self.x.at(stack.low)), box.x(self.x.at(stack.high))
        spare = max(right - left - _WIDEST, 0.0) / 2
        left, right = left + spare, right - spare
        # Adjacent bars have a gap, unless there are too many to see one.
        gap = min(2.0, 0.15 * (right - left))
        wide = max(right - left - gap, 0.8)
        kind = "bar" if wide >= _EDGED else "bar thin"
        total, rects = 0.0, []
        for label, style, value in zip(self.labels, styles, stack.parts, strict=True):
            below, total = box.y(self.y.at(total)), total + value
            above = box.y(self.y.at(total))
            if below - above < 0.05:
                continue
            description = f"{stack.name}, {label}: {self.value_text(value)}"
            rects.append(
                f'<rect class="{kind} s{style % NUM_STYLES}" x="{left + gap / 2:.1f}" y="{above:.2f}"'
                f' width="{wide:.1f}" height="{below - above:.2f}"><title>{safe(description)}</title></rect>'
            )
        return "".join(rects)
