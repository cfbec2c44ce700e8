"""The GPUs of each job over time: a row for each job."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pollux_slurm.document.charts.encodings import (
    WIDTH,
    altair,
    frame,
    look,
    place,
    position,
    rows_as_data,
    tooltip,
    zoom,
)
from pollux_slurm.document.charts.palette import CLASSES, GRID, WAITING
from pollux_slurm.document.charts.scales import Axis
from pollux_slurm.text import plural, shortened, shown

if TYPE_CHECKING:
    from altair.typing import ChartType

# The most GPUs of each class except the last, which has no limit; classes differ in thickness and shade.
_CLASSES = (1, 2, 4, 8, 16)
_CLASS_TEXTS = ("1 GPU", "2", "3–4", "5–8", "9–16", "more")
# What the two lines of a group's label take, and the gap between groups, in pixels.
_LABEL, _GAP = 30.0, 10.0
# So that a timeline fits a printed page with its title and caption.
_TALLEST = 950.0
_LABELS_WIDTH = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One job from `begin` to `end`; `gpu_changes` are (time, number of GPUs from then on)."""

    name: str
    group: str
    begin: float
    end: float
    gpu_changes: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Jobs over time, in groups; in each by their begin. `text` describes the chart in words."""

    title: str
    text: str
    x: Axis
    bars: tuple[Bar, ...]

    def altair(self) -> ChartType:
        """Return the chart. Raises `UsageError` where Altair is not installed."""
        alt = altair()
        row = min(14.0, max(1.0, _TALLEST / max(len(self.bars), 1)))
        ordered = sorted(self.bars, key=lambda bar: (bar.group, bar.begin, bar.name))
        y, held, lives, labels, edges = 0.0, [], [], [], []
        for group, several in groupby(ordered, key=lambda bar: bar.group):
            bars = list(several)
            tall = max(row * len(bars), _LABEL)
            if y:
                edges.append({"y": y - _GAP / 2})
            labels.append({"y": y + tall / 2 - 7, "text": shortened(shown(group), 19), "weight": "bold"})
            labels.append({"y": y + tall / 2 + 8, "text": plural(len(bars), "job"), "weight": "normal"})
            top = y + (tall - row * len(bars)) / 2 + row / 2
            for index, bar in enumerate(bars):
                middle = top + row * index
                lives.append(self._life(bar, middle))
                held += self._held(bar, middle, row)
            y += tall + _GAP
        height = max(y - _GAP, _LABEL)
        down = {"domain": (0, height), "reverse": True, "nice": False, "zero": False}
        x = alt.X(**position("begin", self.x))
        names = [alt.Tooltip("name:N", title="job"), alt.Tooltip("most:Q", title="GPUs")]
        moments = [tooltip("begin", self.x, "from"), tooltip("end", self.x, "to")][: 2 if held else 0]
        thin = (
            alt.Chart(rows_as_data(lives))
            .mark_rule(color=WAITING, strokeWidth=max(min(1.2, row / 3), 0.5))
            .encode(x=x, x2=alt.X2("end"), y=alt.Y("y:Q", scale=down, axis=None), tooltip=names)
        )
        thick = (
            alt.Chart(rows_as_data(held))
            .mark_rect()
            .encode(
                x=x,
                x2=alt.X2("end"),
                y=alt.Y("low:Q", scale=down, axis=None),
                y2=alt.Y2("high"),
                color=alt.Color(
                    "kind:O",
                    scale={"domain": tuple(_CLASS_TEXTS), "range": tuple(CLASSES)},
                    legend={"title": "holds", "orient": "top", "columns": 6, "symbolType": "square"},
                ),
                tooltip=[*names, *moments],
            )
        )
        side = (
            alt.Chart(rows_as_data(labels))
            .mark_text(align="right", baseline="middle", clip=False)
            .encode(
                x=alt.XValue(-8),
                y=alt.Y("y:Q", scale=down, axis=None),
                text=alt.Text("text:N"),
            )
        )
        between = (
            alt.Chart(rows_as_data(edges)).mark_rule(color=GRID).encode(y=alt.Y("y:Q", scale=down, axis=None))
        )
        layers = (frame(self.x), between, thin, thick, side)
        size = {"width": WIDTH - _LABELS_WIDTH, "height": height}
        chart: ChartType = alt.layer(*layers, **size, **look(self.title, self.text)).add_params(zoom())
        return chart

    def _life(self, bar: Bar, y: float) -> dict[str, Any]:
        most = max((gpus for _, gpus in bar.gpu_changes), default=0)
        return {
            **{"begin": place(self.x, bar.begin), "end": place(self.x, bar.end)},
            **{"y": y, "name": shown(bar.name), "most": most},
        }

    def _held(self, bar: Bar, y: float, row: float) -> list[dict[str, Any]]:
        """Return a bar for each time in which a job held GPUs, the thicker the more."""
        ends = [at for at, _ in bar.gpu_changes[1:]] + [bar.end]
        found = []
        for (since, gpus), until in zip(bar.gpu_changes, ends, strict=False):
            if gpus < 1 or until <= since:
                continue
            kind = class_of(gpus)
            tall = row * (0.35 + 0.55 * kind / len(_CLASSES))
            found.append(
                {
                    **{"begin": place(self.x, since), "end": place(self.x, until)},
                    **{"low": y - tall / 2, "high": y + tall / 2, "kind": _CLASS_TEXTS[kind]},
                    **{"name": shown(bar.name), "most": gpus},
                }
            )
        return found


def class_of(gpus: int) -> int:
    """Return the class of a number of GPUs, from 0."""
    return next((index for index, most in enumerate(_CLASSES) if gpus <= most), len(_CLASSES))
