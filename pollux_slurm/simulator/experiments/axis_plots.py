"""Plots of completion times along each axis of an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pollux_slurm.document.charts.line_charts import NUM_STYLES, LineChart, Panel, Series
from pollux_slurm.document.charts.scales import linear_axis, value_axis
from pollux_slurm.document.document import Plot
from pollux_slurm.simulator.experiments.kept_runs import varying_axes


@dataclass(frozen=True, slots=True, kw_only=True)
class _AxisText:
    """The texts of an axis: `column` of the table, title and caption of its plot."""

    column: str
    label: str
    title: str
    caption: str
    # The value at which the other plots fix the axis, if the sweep has it, and its name in their captions.
    usual: float
    short: str
    unit: str = ""


_AXES = (
    _AxisText(
        column="load",
        label="load (1: the paper's, 2.5 jobs a GPU in eight hours)",
        title="Load",
        caption="Average completion time at each load.",
        usual=1.0,
        short="load",
    ),
    _AxisText(
        column="restart_delay_s",
        label="time without progress after a move (s)",
        title="What cheaper restarts are worth",
        caption="Average completion time by what a move costs.",
        usual=30.0,
        short="restart delay",
        unit=" s",
    ),
    _AxisText(
        column="interval_s",
        label="time between decisions (s)",
        title="How often to decide",
        caption="Average completion time by the time between decisions.",
        usual=60.0,
        short="interval",
        unit=" s",
    ),
    _AxisText(
        column="adaptive",
        label="share of jobs that are adaptive",
        title="Adoption",
        caption="Average completion time by how many jobs are adaptive; the others keep their user's size.",
        usual=1.0,
        short="adaptive share",
    ),
    _AxisText(
        column="in_place",
        label="share of jobs that can be moved in place",
        title="Moves in place",
        caption="Average completion time by how many jobs can be moved without a restart.",
        usual=0.0,
        short="share moved in place",
    ),
    _AxisText(
        column="p",
        label="exponent p of the generalized mean",
        title="Fairness exponent p",
        caption="Average completion time by p: the lower, the more the worst-off job counts.",
        usual=-1.0,
        short="p =",
    ),
)


# Axes whose values are lines of their own.
_LINES = frozenset({"workload", "penalty"})


def axis_plots(
    rows: Sequence[Mapping[str, Any]], styles: Mapping[str, int] | None = None
) -> tuple[Plot, ...]:
    """Return plots for each axis that varies, with as many policies in one as lines can be told apart.

    `styles` are the line styles of labels elsewhere.
    """
    labels = list(dict.fromkeys(row["policy"] for row in rows))
    parts = [set(labels[start : start + NUM_STYLES]) for start in range(0, len(labels), NUM_STYLES)]
    return tuple(
        _plot(axis, [row for row in rows if row["policy"] in part], styles or {})
        for axis in _AXES
        if len(_values(rows, axis.column)) > 1
        for part in parts
    )


def _values(rows: Sequence[Mapping[str, Any]], column: str) -> list[float]:
    return sorted({row[column] for row in rows if row.get(column) is not None})


def _plot(axis: _AxisText, rows: Sequence[Mapping[str, Any]], styles: Mapping[str, int]) -> Plot:
    fixed = {other: _fixed_value(other, rows) for other in _AXES if other is not axis}
    others = [name for name in varying_axes(rows) if name not in {one.column for one in _AXES} | _LINES]
    first = {name: rows[0].get(name) for name in others}
    shown = [
        row
        for row in rows
        if all(row.get(name) == value for name, value in first.items())
        and all(row.get(other.column) in (None, at) for other, at in fixed.items())
    ]
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in shown:
        parts = [
            row["policy"],
            *(row.get(name) for name in _LINES if len({r.get(name) for r in shown}) > 1),
        ]
        lines.setdefault(", ".join(str(part) for part in parts if part is not None), []).append(row)
    x_values = [row[axis.column] for row in shown if row.get(axis.column) is not None]
    most_s = max(row["highest_avg_jct_s"] for row in shown)
    unit_s, unit = (3600, "h") if most_s >= 3 * 3600 else (60, "min")
    series, point_texts = [], []
    free = [style for style in range(NUM_STYLES) if style not in styles.values()] or list(range(NUM_STYLES))
    # Lines with bars are shifted a little, so that no bar hides another.
    apart = 0.008 * (max(x_values) - min(x_values)) * any(row["num_runs"] > 1 for row in shown)
    for index, (label, found) in enumerate(lines.items()):
        placed = sorted(
            (row for row in found if row.get(axis.column) is not None), key=lambda row: row[axis.column]
        )
        if not placed:
            continue
        points = ", ".join(
            f"{row['avg_jct_s'] / unit_s:.3g} {unit} at {row[axis.column]:g}" for row in placed
        )
        point_texts.append(f"{label}: {points}")
        ranges = ((row["lowest_avg_jct_s"] / unit_s, row["highest_avg_jct_s"] / unit_s) for row in placed)
        series.append(
            Series(
                label=label,
                style=styles.get(label, free[index % len(free)]),
                points=tuple(
                    (row[axis.column] + apart * (index - (len(lines) - 1) / 2), row["avg_jct_s"] / unit_s)
                    for row in placed
                ),
                ranges=tuple(ranges) if any(row["num_runs"] > 1 for row in placed) else (),
                markers=True,
            )
        )
    y = linear_axis(f"average completion time ({unit})", [0.0, most_s / unit_s])
    at = ", ".join(
        f"{other.short} {value:g}{other.unit}"
        for other, value in fixed.items()
        if value is not None and len(_values(rows, other.column)) > 1
    )
    seeds = " Bars span the seeds." if any(one.ranges for one in series) else ""
    return Plot(
        chart=LineChart(
            title=axis.title,
            text=f"{axis.caption} " + "; ".join(point_texts) + ".",
            x=value_axis(axis.label, x_values),
            panels=(Panel(y=y, series=tuple(series)),),
        ),
        caption=axis.caption + (f" At {at}." if at else "") + seeds,
    )


def _fixed_value(axis: _AxisText, rows: Sequence[Mapping[str, Any]]) -> float | None:
    values = _values(rows, axis.column)
    if not values:
        return None
    return axis.usual if axis.usual in values else values[0]
