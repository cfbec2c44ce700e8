"""Line charts as SVG text. Lengths in SVG units; one is about a pixel at the width of a page.

Colours are classes s0 to s7 that the page's style sheet resolves, for light and dark screens and for print;
each has a dash pattern of its own, so that no line is distinguished by its colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pollux_slurm.report.charts.safe_texts import safe, shortened
from pollux_slurm.report.charts.scales import Axis

WIDTH = 900.0
NUM_STYLES = 8
_LEFT, _RIGHT, _BOTTOM = 64.0, 16.0, 46.0
_SHORTEST = 3.0
_CHARACTER = 7.0  # of 13 px text, on average
_BOLD = 8.6  # of bold text; DejaVu Sans is as wide as any that a browser falls back to


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
class Tip:
    """The tooltip of an interval of the x axis."""

    low: float
    high: float
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

    Lines are named in a legend above, or with `end_labels` at their right ends; without either, their axes
    name them.
    """

    title: str
    text: str
    x: Axis
    panels: tuple[Panel, ...]
    marks: tuple[Mark, ...] = ()
    end_labels: bool = False
    tips: tuple[Tip, ...] = ()
    legend: bool = True

    def svg(self, name: str) -> str:
        """Return the chart as an SVG element; `name` makes its ids unique on the page."""
        labels = list(
            dict.fromkeys(
                (shortened(one.label), one.style, "area" if one.filled else "line")
                for panel in self.panels
                for one in panel.series
            )
        )
        right = _RIGHT
        if self.end_labels:
            right += 14 + _BOLD * max((len(label) for label, _, _ in labels), default=0)
        legend, top = legend_rows(labels) if self.legend and not self.end_labels else ("", 8.0)
        top += 14 * bool(self.marks)
        parts = [legend]
        first_top = top + 20 * bool(self.panels[0].title)
        for panel in self.panels:
            top += 20 * bool(panel.title)
            box = Box(left=_LEFT, top=top, width=WIDTH - _LEFT - right, height=panel.height)
            parts.append(self._panel(panel, box, last=panel is self.panels[-1]))
            top += panel.height + 14
        # Above the lines, so that the pointer reaches them; each spans all panels.
        over = Box(left=_LEFT, top=first_top, width=WIDTH - _LEFT - right, height=top - 14 - first_top)
        parts += [hit_area(tip, self.x, over) for tip in self.tips]
        return svg_element(name, self.title, self.text, top - 14 + _BOTTOM, "".join(parts))

    def _panel(self, panel: Panel, box: Box, *, last: bool) -> str:
        parts = [panel_frame(self.x, panel.y, box, x_text=last)]
        if panel.title:
            parts.append(text_at(box.left, box.top - 7, panel.title, kind="panel-title"))
        parts += [_mark(mark, self.x, box, first=panel is self.panels[0]) for mark in self.marks]
        for one in panel.series:
            parts.append(_line(one, self.x, panel.y, box))
        if self.end_labels:
            parts.append(_end_labels(panel, self.x, box))
        return "".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    left: float
    top: float
    width: float
    height: float

    def x(self, place: float) -> float:
        return self.left + place * self.width

    def y(self, place: float) -> float:
        return self.top + (1 - place) * self.height

    @property
    def bottom(self) -> float:
        return self.top + self.height


def svg_element(name: str, title: str, text: str, height: float, body: str, *, role: str = "img") -> str:
    """Return an SVG element that scales with the page, with a title and a description for screen readers.

    The role is `group` for a chart with links, since nothing within an `img` can be reached.
    """
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="{role}" aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">{safe(title)}</title><desc id="{name}-text">{safe(text)}</desc>'
        f"{body}</svg>"
    )


def text_at(x: float, y: float, text: str, *, kind: str = "", anchor: str = "start") -> str:
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}"{where}>{safe(text)}</text>'


def panel_frame(x: Axis, y: Axis | None, box: Box, *, x_text: bool = True) -> str:
    """Return grid, ticks and axis labels of a plot; without `y`, only those of the x axis."""
    parts = []
    for value, text in _apart(x.ticks, x, box.width):
        at = box.x(x.at(value))
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{box.top:.1f}" y2="{box.bottom:.1f}"/>'
        )
        if x_text:
            # The last text stays within the drawing, or a narrow window would cut it off.
            middle = min(at, WIDTH - _CHARACTER * len(text) / 2)
            parts.append(text_at(middle, box.bottom + 17, text, anchor="middle"))
    if x_text:
        parts.append(
            text_at(box.left + box.width / 2, box.bottom + 38, x.label, kind="label", anchor="middle")
        )
    if y is not None:
        for value, text in y.ticks:
            at = box.y(y.at(value))
            parts.append(f'<path class="grid" d="M{box.left:.1f} {at:.1f}h{box.width:.1f}"/>')
            parts.append(text_at(box.left - 7, at + 4.5, text, anchor="end"))
        middle = box.top + box.height / 2
        parts.append(
            f'<text class="label" text-anchor="middle" transform="translate(14 {middle:.1f}) rotate(-90)">'
            f"{safe(y.label)}</text>"
        )
    parts.append(
        f'<path class="axis" d="M{box.left:.1f} {box.top:.1f}V{box.bottom:.1f}H{box.left + box.width:.1f}"/>'
    )
    return "".join(parts)


def _apart(ticks: Sequence[tuple[float, str]], axis: Axis, width: float) -> list[tuple[float, str]]:
    """Return the ticks whose texts do not run into the one before; the last one stays."""
    kept: list[tuple[float, str]] = []
    for value, text in ticks:
        while kept and value == ticks[-1][0] and _gap(kept[-1], (value, text), axis, width) < 0:
            kept.pop()
        if not kept or _gap(kept[-1], (value, text), axis, width) >= 0:
            kept.append((value, text))
    return kept


def _gap(before: tuple[float, str], after: tuple[float, str], axis: Axis, width: float) -> float:
    apart = (axis.at(after[0]) - axis.at(before[0])) * width
    return apart - _CHARACTER * (len(before[1]) + len(after[1])) / 2 - 10


def legend_rows(labels: Sequence[tuple[str, int, str]], *, left: float = _LEFT) -> tuple[str, float]:
    """Return a legend in rows above the plots, and where it ends: of labels, styles and kinds.

    A `line` is shown as one, an `area` or a `bar` as a box.
    """
    parts, x, y = [], left, 14.0
    for label, style, kind in labels:
        width = 44 + _CHARACTER * len(label) + 16
        if x + width > WIDTH and x > left:
            x, y = left, y + 22
        style_class = f"{kind} s{style % NUM_STYLES}"
        if kind == "line":
            parts.append(f'<path class="{style_class}" d="M{x:.1f} {y - 4:.1f}h32"/>')
        else:
            parts.append(f'<rect class="{style_class}" x="{x:.1f}" y="{y - 10:.1f}" width="32" height="12"/>')
        parts.append(text_at(x + 38, y, label))
        x += width
    return "".join(parts), y + 16


def _mark(mark: Mark, axis: Axis, box: Box, *, first: bool) -> str:
    at = box.x(axis.at(mark.x))
    line = f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{box.top:.1f}" y2="{box.bottom:.1f}"/>'
    anchor = "end" if axis.at(mark.x) > 0.7 else "start"
    return line + (text_at(at, box.top - 4, mark.text, kind="note", anchor=anchor) if first else "")


def hit_area(tip: Tip, axis: Axis, box: Box) -> str:
    """Return an area that shows its text to a pointer, without a script."""
    left, right = box.x(axis.at(tip.low)), box.x(axis.at(tip.high))
    return (
        f'<rect class="hit" x="{left:.1f}" y="{box.top:.1f}" width="{max(right - left, 1.0):.1f}"'
        f' height="{box.height:.1f}"><title>{safe(tip.text)}</title></rect>'
    )


def _line(one: Series, x: Axis, y: Axis, box: Box) -> str:
    style = f"s{one.style % NUM_STYLES}"
    parts, commands = [], []
    for segment in _segments(one):
        places = [(box.x(x.at(at)), box.y(y.at(value))) for at, value in segment]
        path = _path(places, step=one.step)
        if one.filled:
            path += f"V{box.bottom:.1f}H{places[0][0]:.1f}Z"
        commands.append(path)
        # Nobody would see a line of one point, or of several that nearly coincide.
        if one.markers or places[-1][0] - places[0][0] < _SHORTEST:
            parts += [
                f'<circle class="dot {style}" cx="{at:.1f}" cy="{value:.1f}" r="4"/>' for at, value in places
            ]
    if not commands:
        return ""
    kind = "area" if one.filled else "line"
    drawn = f'<path class="{kind} {style}" d="{"".join(commands)}"><title>{safe(one.label)}</title></path>'
    ranges = [
        f'<path class="range {style}" d="M{at:.1f} {box.y(y.at(low)):.1f}V{box.y(y.at(high)):.1f}"/>'
        for at, (low, high) in zip((box.x(x.at(at)) for at, _ in one.points), one.ranges, strict=False)
    ]
    return "".join([drawn, *ranges, *parts])


def _segments(one: Series) -> list[list[tuple[float, float]]]:
    """Return the points between the gaps; a step lasts until its gap begins."""
    segments: list[list[tuple[float, float]]] = [[]]
    for at, value in one.points:
        if not math.isnan(value):
            segments[-1].append((at, value))
        elif segments[-1]:
            if one.step:
                segments[-1].append((at, segments[-1][-1][1]))
            segments.append([])
    return [segment for segment in segments if segment]


def _path(places: Sequence[tuple[float, float]], *, step: bool) -> str:
    commands = [f"M{places[0][0]:.1f} {places[0][1]:.1f}"]
    for (_, before), (at, value) in pairwise(places):
        commands.append(f"H{at:.1f}V{value:.1f}" if step else f"L{at:.1f} {value:.1f}")
        if step and value == before:
            commands[-1] = f"H{at:.1f}"
    return "".join(commands)


def _end_labels(panel: Panel, x: Axis, box: Box) -> str:
    """Return the lines' names at their right ends, moved apart where they would overlap."""
    ends = [
        (box.y(panel.y.at(segments[-1][-1][1])), box.x(x.at(segments[-1][-1][0])), one)
        for one, segments in ((one, _segments(one)) for one in panel.series)
        if segments
    ]
    ends.sort(key=lambda end: end[0])
    ys: list[float] = []
    for y, _, _ in ends:
        ys.append(max(y, ys[-1] + 17) if ys else y)
    # The last may have been pushed out at the bottom: push all of them back up as far as needed.
    limit = box.bottom
    for index in range(len(ys) - 1, -1, -1):
        ys[index] = min(ys[index], limit)
        limit = ys[index] - 17
    parts = []
    for (from_y, from_x, one), y in zip(ends, ys, strict=True):
        edge = box.left + box.width
        style = f"s{one.style % NUM_STYLES}"
        parts.append(f'<path class="leader" d="M{from_x + 5:.1f} {from_y:.1f}L{edge + 10:.1f} {y:.1f}"/>')
        parts.append(text_at(edge + 14, y + 4.5, shortened(one.label), kind=f"end {style}"))
    return "".join(parts)
