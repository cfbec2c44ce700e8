"""What reallocations cost and brought, a row for each, as SVG text."""

from __future__ import annotations

from dataclasses import dataclass

from pollux_slurm.report.charts.line_charts import WIDTH, Box, legend_rows, panel_frame, svg_element, text_at
from pollux_slurm.report.charts.safe_texts import safe, shortened
from pollux_slurm.report.charts.scales import Axis, linear_axis

_LABELS, _BETWEEN, _RIGHT, _BOTTOM = 208.0, 38.0, 18.0, 46.0
_ROW = 26.0
COST_PARTS = (
    ("checkpoint", 0),
    ("stopped, queued, started", 4),
    ("launch to first step", 7),
    ("regroup in place", 3),
)
"""What a standstill is made of, and the styles; those of gains and losses are others.

A move by requeue has the first three, a move in place the last.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRow:
    """One reallocation: `label` and `description` name it, `link` is the id of its row in a table.

    `cost_s` are seconds of standstill by `COST_PARTS`, none where it cost nothing that was measured; `note`
    stands in their place, such as "rolled back". `before` and `after` are goodputs, None where not known.
    """

    label: str
    description: str
    link: str
    cost_s: tuple[float, ...] = ()
    note: str = ""
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveChart:
    """Rows of reallocations: the standstill on the left, goodput before and after on the right.

    `text` describes the chart in words. Each row is a link to its numbers.
    """

    title: str
    text: str
    rows: tuple[MoveRow, ...]

    def svg(self, name: str) -> str:
        """Return the chart as an SVG element; `name` makes its ids unique on the page."""
        legend, top = legend_rows([(label, style, "bar") for label, style in COST_PARTS])
        top += 26
        wide = (WIDTH - _LABELS - _BETWEEN - _RIGHT) / 2
        height = _ROW * max(len(self.rows), 1)
        cost_box = Box(left=_LABELS, top=top, width=wide, height=height)
        gain_box = Box(left=_LABELS + wide + _BETWEEN, top=top, width=wide, height=height)
        costs = linear_axis("standstill (s)", [sum(row.cost_s) for row in self.rows])
        gains = linear_axis(
            "goodput (examples/s)",
            [value for row in self.rows for value in (row.before, row.after) if value is not None],
        )
        parts = [
            legend,
            text_at(cost_box.left, top - 9, "what it cost", kind="panel-title"),
            text_at(gain_box.left, top - 9, "what it brought: goodput before ○, after ●", kind="panel-title"),
            panel_frame(costs, None, cost_box),
            panel_frame(gains, None, gain_box),
        ]
        for index, row in enumerate(self.rows):
            parts.append(_row(row, top + _ROW * index, costs, cost_box, gains, gain_box))
        return svg_element(name, self.title, self.text, top + height + _BOTTOM, "".join(parts), role="group")


def _row(row: MoveRow, y: float, costs: Axis, cost_box: Box, gains: Axis, gain_box: Box) -> str:
    middle = y + _ROW / 2
    parts = [
        f'<rect class="row" x="0" y="{y:.1f}" width="{WIDTH:g}" height="{_ROW:g}"/>',
        text_at(_LABELS - 10, middle + 4.5, shortened(row.label, 29), anchor="end"),
    ]
    total = 0.0
    for (_, style), seconds in zip(COST_PARTS, row.cost_s, strict=False):
        left, total = cost_box.x(costs.at(total)), total + seconds
        right = cost_box.x(costs.at(total))
        if right - left >= 0.05:
            parts.append(
                f'<rect class="bar s{style}" x="{left:.2f}" y="{y + 6:.1f}" width="{right - left:.2f}"'
                f' height="{_ROW - 12:g}"/>'
            )
    if row.note:
        parts.append(text_at(cost_box.x(costs.at(total)) + 6, middle + 4.5, row.note, kind="note"))
    parts.append(_gain(row, middle, gains, gain_box))
    return (
        f'<a class="move" href="#{safe(row.link)}" aria-label="{safe(row.description)}">'
        f"<title>{safe(row.description)}</title>{''.join(parts)}</a>"
    )


def _gain(row: MoveRow, middle: float, gains: Axis, box: Box) -> str:
    before = None if row.before is None else box.x(gains.at(row.before))
    after = None if row.after is None else box.x(gains.at(row.after))
    style = "s2" if row.before is None or row.after is None or row.after >= row.before else "s1"
    parts = []
    if before is not None and after is not None:
        parts.append(f'<path class="gain {style}" d="M{before:.1f} {middle:.1f}H{after:.1f}"/>')
    if before is not None:
        parts.append(f'<circle class="hollow {style}" cx="{before:.1f}" cy="{middle:.1f}" r="4.5"/>')
    if after is not None:
        parts.append(f'<circle class="dot {style}" cx="{after:.1f}" cy="{middle:.1f}" r="5"/>')
    return "".join(parts)
