"""What reallocations cost and brought, a row for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pollux_slurm.document.charts.encodings import WIDTH, altair, colour, look, position, rows_as_data
from pollux_slurm.document.charts.palette import PAGE, SERIES, SOFT
from pollux_slurm.document.charts.scales import linear_axis
from pollux_slurm.text import shown

if TYPE_CHECKING:
    import altair as alt
    from altair.typing import ChartType

_LABELS_WIDTH, _ROW = 200, 26
COST_PARTS = (
    ("checkpoint", 0),
    ("stopped, queued, started", 4),
    ("launch to first step", 7),
    ("regroup in place", 3),
)
"""What a standstill is made of, and the styles; those of gains and losses are others.

A move by requeue has the first three, a move in place the last.
"""
_GAIN, _LOSS = SERIES[2], SERIES[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRow:
    """One reallocation: `label` and `description` name it.

    `cost_s` are seconds of standstill by `COST_PARTS`, none where it cost nothing that was measured; `note`
    stands in their place, such as "rolled back". `before` and `after` are goodputs, None where not known.
    """

    label: str
    description: str
    cost_s: tuple[float, ...] = ()
    note: str = ""
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveChart:
    """Rows of reallocations: the standstill on the left, goodput before and after on the right.

    `text` describes the chart in words.
    """

    title: str
    text: str
    rows: tuple[MoveRow, ...]

    def altair(self) -> ChartType:
        """Return the chart. Raises `UsageError` where Altair is not installed."""
        alt = altair()
        size = {"width": (WIDTH - _LABELS_WIDTH) / 2, "height": _ROW * max(len(self.rows), 1)}
        rows = [self._row(index, row) for index, row in enumerate(self.rows)]
        y = alt.Y(
            "place:O",
            axis={
                "title": None,
                "labelExpr": f"{[row['label'] for row in rows]!r}[datum.value]",
                "labelLimit": _LABELS_WIDTH - 10,
                "ticks": False,
            },
        )
        costs = self._costs(y, title="what it cost", **size)
        gains = self._gains(rows, title="what it brought: goodput before ○, after ●", **size)
        chart: ChartType = alt.hconcat(costs, gains, spacing=24, **look(self.title, self.text))
        return chart

    def _row(self, index: int, row: MoveRow) -> dict[str, Any]:
        before, after = row.before, row.after
        is_loss = before is not None and after is not None and after < before
        return {
            **{
                "place": index,
                "label": shown(row.label),
                "what": shown(row.description),
                "note": shown(row.note),
            },
            **{"total": sum(row.cost_s), "before": before, "after": after, "loss": is_loss},
        }

    def _costs(self, y: alt.Y, **more: Any) -> Any:
        alt = altair()
        labels, styles = [label for label, _ in COST_PARTS], [style for _, style in COST_PARTS]
        axis = linear_axis("standstill (s)", [sum(row.cost_s) for row in self.rows])
        parts = [
            {"place": index, "label": label, "order": order, "s": seconds, "what": shown(row.description)}
            for index, row in enumerate(self.rows)
            for order, (label, seconds) in enumerate(zip(labels, row.cost_s, strict=False))
        ]
        notes = [
            {"place": index, "note": shown(row.note), "total": sum(row.cost_s)}
            for index, row in enumerate(self.rows)
            if row.note
        ]
        bars = (
            alt.Chart(rows_as_data(parts))
            .mark_bar(stroke=PAGE, strokeWidth=0.6, height=13)
            .encode(
                x=alt.X(**position("s", axis) | {"stack": "zero"}),
                y=y,
                color=colour(labels, styles, legend="square"),
                order=alt.Order("order:O"),
                tooltip=[
                    alt.Tooltip("what:N", title="move"),
                    alt.Tooltip("label:N", title="part"),
                    alt.Tooltip("s:Q"),
                ],
            )
        )
        texts = (
            alt.Chart(rows_as_data(notes))
            .mark_text(align="left", dx=6, fill=SOFT)
            .encode(x=alt.X("total:Q"), y=y, text=alt.Text("note:N"))
        )
        return alt.layer(bars, texts, **more)

    def _gains(self, rows: list[dict[str, Any]], **more: Any) -> Any:
        alt = altair()
        known = [value for row in self.rows for value in (row.before, row.after) if value is not None]
        axis = linear_axis("goodput (examples/s)", known)
        colours = alt.ColorValue(_GAIN, condition={"test": "datum.loss", "value": _LOSS})
        base = alt.Chart(rows_as_data(rows)).encode(
            y=alt.Y("place:O", axis={"title": None, "labels": False, "ticks": False}),
            color=colours,
            tooltip=[alt.Tooltip("what:N", title="move")],
        )

        def of(field: str) -> Any:
            return base.transform_filter(f"datum.{field} !== null").encode(x=alt.X(**position(field, axis)))

        between = of("before").transform_filter("datum.after !== null").mark_rule(strokeWidth=2.6)
        hollow = of("before").mark_point(size=70, fill=PAGE, strokeWidth=2)
        full = of("after").mark_point(size=80, filled=True)
        return alt.layer(between.encode(x2=alt.X2("after")), hollow, full, **more)
