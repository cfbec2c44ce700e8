"""The report of a sweep: a plot of completion times for each axis, and a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pollux_slurm.report import (
    Figure,
    LineChart,
    Page,
    Panel,
    Section,
    Series,
    Table,
    duration_text,
    hours,
    linear_axis,
    minutes,
    render_page,
    value_axis,
)
from pollux_slurm.report.charts.line_charts import NUM_STYLES
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.experiments.sweep import SweepResult, axis_text, table_rows, varying_axes
from pollux_slurm.simulator.results.files import write_text


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
        column="adaptive_share",
        label="share of jobs that are adaptive",
        title="Adoption",
        caption="Average completion time by how many jobs are adaptive; the others keep their user's size.",
        usual=1.0,
        short="adaptive share",
    ),
    _AxisText(
        column="in_place_share",
        label="share of jobs that can be moved in place",
        title="Moves in place",
        caption="Average completion time by how many jobs can be moved without a restart.",
        usual=0.0,
        short="share in place",
    ),
    _AxisText(
        column="exponent",
        label="exponent p of the generalized mean",
        title="Fairness exponent p",
        caption="Average completion time by p: the lower, the more the worst-off job counts.",
        usual=-1.0,
        short="p =",
    ),
)


def write_sweep_report(file: Path, results: Sequence[SweepResult], settings: RunSettings) -> None:
    """Write the page of a sweep; `settings` are of one of its runs. Raises `UsageError`."""
    varying = {
        name
        for name in ("interval_s", "restart_delay_s", "adaptive_share", "in_place_share")
        if len({getattr(result, name) for result in results}) > 1
    }
    page = Page(
        title="Sweep of simulations",
        lead=f"Simulated, not measured: {len(results)} runs with a clock instead of a cluster.",
        facts=setting_facts(settings, varying),
        sections=sweep_sections(results),
    )
    write_text(file, render_page(page))


def setting_facts(settings: RunSettings, varying: Collection[str] = ()) -> tuple[tuple[str, str], ...]:
    """Return the settings that all runs share, as names and values, without the `varying` ones."""
    facts = [("Rules", settings.rules), ("Cluster", settings.cluster_text)]
    if "interval_s" not in varying:
        facts.append(("Decision every", duration_text(settings.interval_s)))
    slurm = settings.slurm
    if settings.rules == "osdi21" and "restart_delay_s" not in varying:
        facts.append(("No progress after a move", duration_text(settings.restart_delay_s)))
    if settings.rules == "slurm" and "adaptive_share" not in varying:
        facts.append(("Adaptive jobs", f"{100 * slurm.adaptive_share:g} %"))
    in_place = settings.in_place
    if in_place is not None:
        share = "" if "in_place_share" in varying else f"{100 * in_place.share:g} % of jobs; "
        wings = "several wings on a node" if in_place.several_wings else "one wing on a node"
        warm_up = "" if settings.rules == "slurm" else f"; warm-up {in_place.warm_up_s:g} s"
        standstill = f"standstill {in_place.standstill_s:g} s and {in_place.standstill_s_per_gb:g} s a GB"
        facts.append(("Moved in place", f"{share}{wings}{warm_up}; {standstill}"))
    if slurm.requeue_s is not None:
        facts.append(("From requeue to start", duration_text(slurm.requeue_s)))
    if slurm.unmanaged_share:
        facts.append(("GPUs used by jobs of others", f"{100 * slurm.unmanaged_share:g} %"))
    if slurm.mtbf_s is not None:
        facts.append(("A node fails every", duration_text(slurm.mtbf_s)))
    if settings.interference:
        facts.append(("Speed lost to interference", f"{100 * settings.interference:g} %"))
    if settings.noise:
        noise = f"{100 * settings.noise.spread:g} %, {100 * settings.noise.outliers:g} % of minutes outliers"
        facts.append(("Noise of measured step times", noise))
    return tuple(facts)


def sweep_sections(
    results: Sequence[SweepResult], styles: Mapping[str, int] | None = None
) -> tuple[Section, ...]:
    """Return a section with plots of the varying axes and a section with a table; none without runs.

    `styles` are the line styles of labels elsewhere on the page.
    """
    if not results:
        return ()
    rows = table_rows(results)
    figures = [_figure(axis, rows, styles or {}) for axis in _AXES if len(_values(rows, axis.column)) > 1]
    table = Section(title="All combinations", tables=(_table(rows, results),))
    return (Section(title="Sweep", figures=tuple(figures)), table) if figures else (table,)


def _values(rows: Sequence[Mapping[str, Any]], column: str) -> list[float]:
    return sorted({row[column] for row in rows if row[column] is not None})


def _figure(axis: _AxisText, rows: Sequence[Mapping[str, Any]], styles: Mapping[str, int]) -> Figure:
    fixed = {other: _fixed_value(other, rows) for other in _AXES if other is not axis}
    shown = [row for row in rows if all(row[other.column] in (None, at) for other, at in fixed.items())]
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in shown:
        parts = [
            row["policy"],
            *(row[name] for name in ("workload", "penalty") if len({r[name] for r in shown}) > 1),
        ]
        lines.setdefault(", ".join(str(part) for part in parts if part is not None), []).append(row)
    x_values = [row[axis.column] for row in shown if row[axis.column] is not None]
    most_s = max(row["highest_avg_jct_s"] for row in shown)
    unit_s, unit = (3600, "h") if most_s >= 3 * 3600 else (60, "min")
    series, point_texts = [], []
    free = [style for style in range(NUM_STYLES) if style not in styles.values()] or list(range(NUM_STYLES))
    # Lines with bars are shifted a little, so that no bar hides another.
    apart = 0.008 * (max(x_values) - min(x_values)) * any(row["num_runs"] > 1 for row in shown)
    for index, (label, found) in enumerate(lines.items()):
        placed = sorted(
            (row for row in found if row[axis.column] is not None), key=lambda row: row[axis.column]
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
    return Figure(
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


def _table(rows: Sequence[Mapping[str, Any]], results: Sequence[SweepResult]) -> Table:
    axes = varying_axes(rows)
    seeds = sorted({result.seed for result in results if result.seed is not None})
    of_seeds = f" Seeds of the workloads: {', '.join(map(str, seeds))}." if seeds else ""
    return Table(
        columns=(
            "policy",
            *axes.values(),
            *(
                "runs",
                "average (min)",
                "ratio",
                "p99 (h)",
                "makespan (h)",
                "restarts",
                "regroups",
                "lost",
                "worst\N{NO-BREAK SPACE}ρ",
            ),
        ),
        rows=tuple(
            (
                row["policy"],
                *(axis_text(row[name]) for name in axes),
                str(row["num_runs"]),
                minutes(row["avg_jct_s"]),
                f"{row['ratio']:.3f}",
                hours(row["p99_jct_s"]),
                hours(row["makespan_s"]),
                f"{row['restarts_per_job']:.2f}",
                f"{row['regroups_per_job']:.2f}",
                f"{100 * row['restart_share']:.1f}\N{NO-BREAK SPACE}%",
                "–" if row["rho_worst"] is None else f"{row['rho_worst']:.2f}",
            )
            for row in rows
        ),
        note="Means over the runs of a row; worst\N{NO-BREAK SPACE}ρ: the largest; "
        f"ratio: mean of the runs' ratios to the first policy on the same workload.{of_seeds}",
    )
