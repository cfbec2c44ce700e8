"""Stacked bars over time, such as GPU hours by account and day."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

from pollux_slurm.document.charts.encodings import (
    WIDTH,
    altair,
    chosen,
    colour,
    frame,
    look,
    place,
    position,
    rows_as_data,
    zoom,
)
from pollux_slurm.document.charts.palette import PAGE
from pollux_slurm.document.charts.scales import Axis
from pollux_slurm.document.charts.time_axes import day_text, midnight
from pollux_slurm.text import shortened, shown

if TYPE_CHECKING:
    from altair.typing import ChartType

# The share of its interval that a bar leaves free on each side.
_EDGE = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The bar from `low` to `high` on the x axis; `parts` are its heights, one for each label, from below."""

    name: str
    low: float
    high: float
    parts: tuple[float, ...]


def day_stacks(days: Mapping[date, Sequence[float]]) -> tuple[Stack, ...]:
    """Return a bar for each day in UTC, in order."""
    begins = {day: midnight(day) for day in sorted(days)}
    return tuple(
        Stack(
            name=f"{day_text(begin)} {day.year}",
            low=begin.timestamp(),
            high=(begin + timedelta(days=1)).timestamp(),
            parts=tuple(days[day]),
        )
        for day, begin in begins.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedBars:
    """A bar for each interval of the x axis. `text` describes the chart in words.

    `styles` are those of the labels, by default 0, 1, ...; `value_text` formats a part's value for its
    tooltip. Beyond eight, labels share styles: group the smallest before. A click in the legend shows a
    label alone.
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

    def altair(self) -> ChartType:
        """Return the chart. Raises `UsageError` where Altair is not installed."""
        alt = altair()
        styles = self.styles or tuple(range(len(self.labels)))
        labels = [shortened(shown(label)) for label in self.labels]
        rows = [
            {
                "low": place(self.x, stack.low + _EDGE * (stack.high - stack.low)),
                "high": place(self.x, stack.high - _EDGE * (stack.high - stack.low)),
                "name": shown(stack.name),
                "label": label,
                "order": order,
                "value": value,
                "text": self.value_text(value),
            }
            for stack in self.stacks
            for order, (label, value) in enumerate(zip(labels, stack.parts, strict=True))
            if value > 0
        ]
        choice = chosen("chosen")
        bars = (
            alt.Chart(rows_as_data(rows))
            .mark_rect(stroke=PAGE, strokeWidth=0.6)
            .encode(
                x=alt.X(**position("low", self.x)),
                x2=alt.X2("high"),
                y=alt.Y(**position("from", self.y)),
                y2=alt.Y2("to"),
                color=colour(labels, styles, legend="square"),
                tooltip=[
                    alt.Tooltip("name:N", title="when"),
                    alt.Tooltip("label:N", title="of"),
                    alt.Tooltip("text:N", title="value"),
                ],
            )
            .transform_filter(choice)
            .transform_stack(
                stack="value", as_=["from", "to"], groupby=["low"], sort=[alt.SortField("order", "ascending")]
            )
            .add_params(choice, zoom())
        )
        size = {"width": WIDTH, "height": self.height}
        chart: ChartType = alt.layer(bars, frame(self.x), **size, **look(self.title, self.text))
        return chart
