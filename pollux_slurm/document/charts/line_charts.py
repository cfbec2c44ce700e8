"""Line charts: one or several plots below each other, over one x axis."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pollux_slurm.document.charts.encodings import (
    WIDTH,
    altair,
    chosen,
    colour,
    dashes,
    frame,
    look,
    place,
    position,
    rows_as_data,
    tooltip,
    zoom,
)
from pollux_slurm.document.charts.palette import SOFT
from pollux_slurm.document.charts.scales import Axis
from pollux_slurm.document.charts.thinning import thinned
from pollux_slurm.text import shortened, shown

if TYPE_CHECKING:
    import altair as alt
    from altair.typing import ChartType

NUM_STYLES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line through `points`, (x, y) by ascending x; where y is NaN, the line has a gap.

    `step`: each value holds until the next point. `filled`: the area below instead of a line. `markers`: a
    dot at each point. `ranges`: (low, high) at each point, drawn as a bar through it.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    style: int = 0
    step: bool = False
    filled: bool = False
    markers: bool = False
    ranges: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A vertical line across a chart, with a text beside it."""

    x: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot of a chart: its lines on a y axis, below the panels before it, over the same x axis."""

    y: Axis
    series: tuple[Series, ...]
    height: float = 300.0
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Panels over one x axis. `text` describes the chart in words, for those who do not see it.

    Lines are named in a legend above each panel; without `legend`, their axes name them.
    """

    title: str
    text: str
    x: Axis
    panels: tuple[Panel, ...]
    marks: tuple[Mark, ...] = ()
    legend: bool = True

    def altair(self) -> ChartType:
        """Return the chart. Raises `UsageError` where Altair is not installed."""
        whole = look(self.title, self.text)
        if len(self.panels) == 1:
            return self._plot(0, self.panels[0], **whole)
        plots = [self._plot(index, panel) for index, panel in enumerate(self.panels)]
        apart = {"scale": {"color": "independent", "strokeDash": "independent"}}
        whole_chart: ChartType = altair().vconcat(*plots, spacing=14, resolve=apart, **whole)
        return whole_chart

    def _plot(self, index: int, panel: Panel, **more: Any) -> ChartType:
        alt = altair()
        last = index == len(self.panels) - 1
        labels = [shortened(shown(one.label)) for one in panel.series]
        styles = [one.style for one in panel.series]
        by_colour = colour(labels, styles, legend="stroke" if self.legend else "")
        by_dash = dashes(labels, styles, legend="stroke" if self.legend else "")
        choice = chosen(f"chosen{index}")
        x = alt.X(**position("x", self.x, labels=last))
        y = alt.Y(**position("y", panel.y), stack=None)
        faded = alt.OpacityValue(0.12, condition={"param": choice.name, "value": 1.0})
        layers = [frame(self.x, labels=last).encode(y=alt.YValue(0))]
        for one, label in zip(panel.series, labels, strict=True):
            rows = list(self._rows(one))
            if not rows:
                continue
            base = (
                alt.Chart(rows_as_data(rows))
                .transform_calculate(label=json.dumps(label))
                .encode(x=x, y=y, color=by_colour, opacity=faded)
            )
            tips = base.encode(
                tooltip=[
                    tooltip("x", self.x),
                    tooltip("y", panel.y, label if self.legend else ""),
                    *([alt.Tooltip("label:N", title="of")] if self.legend and len(labels) > 1 else []),
                ]
            )
            bend = "step-after" if one.step else "linear"
            if one.filled:
                layers.append(
                    base.mark_area(interpolate=bend, fillOpacity=0.3).encode(detail=alt.Detail("part:N"))
                )
            line = base.mark_line(interpolate=bend, strokeWidth=2.2).encode(
                detail=alt.Detail("part:N"), strokeDash=by_dash
            )
            layers.append(line)
            if one.ranges:
                layers.append(base.mark_rule(strokeWidth=1.6).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q")))
            # A segment of one point would not be seen; the other points show their values to a pointer.
            layers.append(
                tips.mark_point(filled=True, size=50).encode(
                    opacity=alt.OpacityValue(0.0, condition={"test": "datum.dot", "value": 1.0})
                )
            )
        if self.marks:
            layers += self._marks(x, first=index == 0)
        if panel.title:
            more["title"] = panel.title
        plot = alt.layer(*layers, width=WIDTH, height=panel.height, **more)
        zoomed: ChartType = plot.add_params(choice, zoom())
        return zoomed

    def _rows(self, one: Series) -> Iterator[dict[str, Any]]:
        """Yield a series' points with the number of their segment between gaps, to six digits."""
        part, alone = 0, _alone(one.points)
        for index, (at, value) in enumerate(one.points):
            if math.isnan(value):
                part += 1
                continue
            row: dict[str, Any] = {"x": round(place(self.x, at), 6), "y": float(f"{value:.6g}"), "part": part}
            if one.markers or index in alone:
                row["dot"] = True
            if index < len(one.ranges):
                row["low"], row["high"] = one.ranges[index]
            yield row

    def _marks(self, x: alt.X, *, first: bool) -> list[Any]:
        alt = altair()
        rows = [{"x": place(self.x, mark.x), "text": shown(mark.text)} for mark in self.marks]
        base = alt.Chart(rows_as_data(rows)).encode(x=x)
        rules = base.mark_rule(color=SOFT, strokeDash=[2, 3], strokeWidth=1.2)
        if not first or not any(mark.text for mark in self.marks):
            return [rules]
        right = any(self.x.at(mark.x) > 0.7 for mark in self.marks)
        texts = base.mark_text(
            align="right" if right else "left", dx=-5 if right else 5, baseline="top", dy=4, fontSize=12
        )
        return [rules, texts.encode(text=alt.Text("text:N"), y=alt.YValue(0))]


def _alone(points: tuple[tuple[float, float], ...]) -> set[int]:
    """Return the places of points between two gaps."""
    gaps = [True, *(math.isnan(value) for _, value in points), True]
    return {index for index in range(len(points)) if gaps[index] and gaps[index + 2]}


def distribution(label: str, values: Sequence[float], axis: Axis, style: int) -> Series:
    """Return the share of `values`, in ascending order, up to each point of the axis."""
    steps = [(value, (index + 1) / len(values)) for index, value in enumerate(values)]
    points = thinned([(axis.low, 0.0), *steps, (axis.high, 1.0)])
    return Series(label=label, points=points, style=style, step=True)
