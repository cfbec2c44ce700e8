"""The GPUs of each job over time: a row for each job, as SVG text."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from pollux_slurm.report.charts.line_charts import WIDTH, Box, panel_frame, svg_element, text_at
from pollux_slurm.report.charts.safe_texts import safe, shortened
from pollux_slurm.report.charts.scales import Axis

# The most GPUs of each class except the last, which has no limit; classes differ in thickness and shade.
_CLASSES = (1, 2, 4, 8, 16)
_CLASS_TEXTS = ("1 GPU", "2", "3–4", "5–8", "9–16", "more")
_LEFT, _RIGHT, _TOP, _BOTTOM = 150.0, 16.0, 34.0, 46.0
# What the two lines of a group's label take.
_LABEL = 30.0
# So that a timeline fits a printed page with its title and caption.
_TALLEST = 950.0


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

    def svg(self, name: str) -> str:
        """Return the chart as an SVG element; `name` makes its ids unique on the page."""
        row = min(14.0, max(1.0, _TALLEST / max(len(self.bars), 1)))
        gap = 10.0
        ordered = sorted(self.bars, key=lambda bar: (bar.group, bar.begin, bar.name))
        groups = [(group, list(bars)) for group, bars in groupby(ordered, key=lambda bar: bar.group)]
        tall = [max(row * len(bars), _LABEL) for _, bars in groups]
        height = sum(tall) + gap * max(len(groups) - 1, 0)
        box = Box(left=_LEFT, top=_TOP, width=WIDTH - _LEFT - _RIGHT, height=height)
        parts = [_legend(), panel_frame(self.x, None, box)]
        y = box.top
        for index, (group, bars) in enumerate(groups):
            if index:
                parts.append(f'<path class="grid" d="M{box.left:.1f} {y - gap / 2:.1f}h{box.width:.1f}"/>')
            parts.append(_group_label(group, len(bars), y + tall[index] / 2))
            top = y + (tall[index] - row * len(bars)) / 2
            parts += [_row(bar, self.x, box, top + row * place, row) for place, bar in enumerate(bars)]
            y += tall[index] + gap
        return svg_element(name, self.title, self.text, box.bottom + _BOTTOM, "".join(parts))


def _group_label(group: str, num_jobs: int, y: float) -> str:
    count = f"{num_jobs} job" + "s" * (num_jobs != 1)
    return text_at(_LEFT - 8, y - 1, shortened(group, 19), kind="group", anchor="end") + text_at(
        _LEFT - 8, y + 14, count, kind="note", anchor="end"
    )


def _row(bar: Bar, x: Axis, box: Box, y: float, row: float) -> str:
    """Return a thin line from begin to end, and a bar while the job has GPUs."""
    begin, end, middle = box.x(x.at(bar.begin)), box.x(x.at(bar.end)), y + row / 2
    thin = min(0.8, 0.25 * row)
    parts = [
        f'<path class="waiting" style="stroke-width:{thin:.2g}" d="M{begin:.1f} {middle:.1f}H{end:.1f}"/>'
    ]
    shapes: dict[int, list[str]] = {}
    ends = [at for at, _ in bar.gpu_changes[1:]] + [bar.end]
    for (since, gpus), until in zip(bar.gpu_changes, ends, strict=False):
        if gpus < 1 or until <= since:
            continue
        kind = class_of(gpus)
        tall = row * (0.35 + 0.55 * kind / (len(_CLASSES)))
        left, right = box.x(x.at(since)), box.x(x.at(until))
        wide = max(right - left, 0.6)
        shapes.setdefault(kind, []).append(
            f"M{left:.1f} {middle - tall / 2:.2f}h{wide:.1f}v{tall:.2f}h-{wide:.1f}z"
        )
    parts += [f'<path class="g{kind}" d="{"".join(found)}"/>' for kind, found in sorted(shapes.items())]
    most = max((gpus for _, gpus in bar.gpu_changes), default=0)
    return f"<g><title>{safe(bar.name)}: up to {most} GPUs</title>{''.join(parts)}</g>"


def class_of(gpus: int) -> int:
    """Return the class of a number of GPUs, from 0."""
    return next((index for index, most in enumerate(_CLASSES) if gpus <= most), len(_CLASSES))


def _legend() -> str:
    parts = [text_at(_LEFT, 18, "holds")]
    x = _LEFT + 46
    for kind, text in enumerate(_CLASS_TEXTS):
        tall = 14 * (0.35 + 0.55 * kind / len(_CLASSES))
        parts.append(
            f'<rect class="g{kind}" x="{x:.1f}" y="{13.5 - tall / 2:.1f}" width="30" height="{tall:.1f}"/>'
        )
        parts.append(text_at(x + 36, 18, text))
        x += 54 + 7 * len(text)
    parts.append(f'<path class="waiting" d="M{x:.1f} 13.5h30"/>' + text_at(x + 36, 18, "waits"))
    return "".join(parts)
