"""The report of some simulations: tables, and the plots that papers on scheduling show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pollux_slurm.report import (
    Axis,
    Bar,
    Figure,
    LineChart,
    Mark,
    Page,
    Panel,
    Section,
    Series,
    Table,
    Timeline,
    duration_axis,
    duration_text,
    hours,
    linear_axis,
    log_axis,
    minutes,
    render_page,
)
from pollux_slurm.simulator.experiments.axis_plots import axis_figures
from pollux_slurm.simulator.experiments.kept_runs import KeptRun, axis_text, table_rows, varying_axes
from pollux_slurm.simulator.experiments.run_values import job_table, quantile_table, spans_of, use_table
from pollux_slurm.simulator.results.files import write_text
from pollux_slurm.simulator.results.outcomes import JobOutcome
from pollux_slurm.simulator.results.summary import RunOutcome

# No screen shows more points side by side.
_MOST_POINTS = 500

_NOTE = (
    "Average, median, p90 and p99 are of completion times, from submission to end; means over the runs of a "
    "row; ratio: mean of the averages over those of the first policy of the same workload; bound: no "
    "policy's average is below it; node hours: while nodes were there, GPU hours: while jobs had GPUs; "
    "restarts, regroups (moves in place): per job; lost: share of GPU time without progress at starts, moves "
    "and failures; ρ: completion time over that alone on an equal share of the cluster (finish-time "
    "fairness: above 1, sharing cost the job time), the worst of all runs."
)
_WORST_RHO, _UNFAIR = "worst\N{NO-BREAK SPACE}ρ", "ρ\N{NO-BREAK SPACE}>\N{NO-BREAK SPACE}1"
# Keys of the experiment that the page names, whatever their values; others where they are set.
_ALWAYS = ("rules", "nodes", "interval_s", "restart_delay_s")


def write_report(file: Path, results: Sequence[KeptRun]) -> None:
    """Write the page of an experiment's runs. Raises `UsageError`."""
    write_text(file, render_page(report_page(results)))


def report_page(results: Sequence[KeptRun]) -> Page:
    """Return the page of some runs: a table, plots along the axes, and plots of single workloads.

    The last are those of runs on equal points, where all were run just now.
    """
    rows = table_rows(results)
    axes = varying_axes(rows)
    styles = {label: style for style, label in enumerate(dict.fromkeys(one.label for one in results))}
    sections = [Section(title="Comparison", tables=(_table(rows, axes, results), *_accounts(results)))]
    figures = axis_figures(rows, styles)
    if figures:
        sections.append(Section(title="Axes", figures=figures))
    workloads: dict[str, list[tuple[str, RunOutcome]]] = {}
    for one in results:
        if one.outcome is not None and set(axes) <= {"workload"}:
            workloads.setdefault(one.workload, []).append((one.label, one.outcome))
    for workload, several in workloads.items():
        if len(dict(several)) == len(several):
            title = workload if len(workloads) > 1 else "Plots"
            sections.append(Section(title=title, figures=_figures(several)))
    return Page(
        title="Scheduling policies compared",
        lead=_lead(results),
        facts=_facts(results[0], axes) if results else (),
        sections=tuple(sections),
    )


def _lead(results: Sequence[KeptRun]) -> str:
    workloads = {(one.workload, one.summary["num_jobs"]) for one in results}
    num_jobs = sum(number for _, number in workloads)
    jobs = f"{num_jobs} job" + "s" * (num_jobs != 1)
    several = f"{len(workloads)} workloads of {jobs} in all" if len(workloads) > 1 else jobs
    runs = f"{len(results)} run" + "s" * (len(results) != 1)
    return f"Simulated, not measured: {runs} of {several}, replayed with a clock instead of a cluster."


def _facts(one: KeptRun, axes: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the keys that are equal for all runs, with their values."""
    return tuple(
        (name, axis_text(value))
        for name, value in one.place.items()
        if name not in axes and (name in _ALWAYS or value not in (None, False, 0, "users"))
    )


def _table(rows: Sequence[Mapping[str, Any]], axes: Mapping[str, str], results: Sequence[KeptRun]) -> Table:
    seeds = sorted({result.seed for result in results if result.seed is not None})
    of_seeds = f" Seeds of the workloads: {', '.join(map(str, seeds))}." if seeds else ""
    bounds = any(row["bound_avg_jct_s"] is not None for row in rows)
    runs = any(row["num_runs"] > 1 for row in rows)
    scaled = any(row.get("autoscale") for row in rows)
    return Table(
        columns=(
            *("policy", *axes.values(), *(["runs"] if runs else []), "average (min)", "ratio"),
            *(("bound (min)", "to bound") if bounds else ()),
            *("median (min)", "p90 (h)", "p99 (h)", "makespan (h)"),
            *(["node hours"] if scaled else []),
            "GPU hours",
            *("restarts", "regroups", "lost", _WORST_RHO, _UNFAIR),
        ),
        rows=tuple(_row(row, axes, bounds=bounds, runs=runs, scaled=scaled) for row in rows),
        note=_NOTE + of_seeds,
    )


def _row(
    row: Mapping[str, Any], axes: Mapping[str, str], *, bounds: bool, runs: bool, scaled: bool
) -> tuple[str, ...]:
    bound_s = row["bound_avg_jct_s"]
    to_bound = "–" if bound_s is None else _percent(bound_s / row["avg_jct_s"] - 1)
    return (
        row["policy"],
        *(axis_text(row.get(name)) for name in axes),
        *([str(row["num_runs"])] if runs else []),
        minutes(row["avg_jct_s"]),
        f"{row['ratio']:.3f}",
        *((_or(minutes, bound_s), to_bound) if bounds else ()),
        _or(minutes, row["p50_jct_s"]),
        *(_or(hours, row[name]) for name in ("p90_jct_s", "p99_jct_s", "makespan_s")),
        *([_or("{:,.0f}".format, row["node_hours"])] if scaled else []),
        _or("{:,.0f}".format, row["gpu_hours"]),
        *(_or("{:.2f}".format, row[name]) for name in ("restarts_per_job", "regroups_per_job")),
        _or(lambda share: f"{100 * share:.1f}\N{NO-BREAK SPACE}%", row["restart_share"]),
        _or("{:.2f}".format, row["rho_worst"]),
        _or(_percent, row["rho_share_above_1"]),
    )


def _accounts(results: Sequence[KeptRun]) -> tuple[Table, ...]:
    rows = tuple(
        (
            f"{one.workload}: {one.label}: {account}",
            f"{got['num_jobs']}",
            minutes(got["avg_jct_s"]),
            f"{got['gpu_hours']:,.1f}",
            _or("{:.2f}".format, got["rho_worst"]),
            _or(_percent, got["rho_share_above_1"]),
        )
        for one in results
        for account, got in one.summary.get("accounts", {}).items()
    )
    columns = ("account", "jobs", "average (min)", "GPU hours", _WORST_RHO, _UNFAIR)
    return (Table(columns=columns, rows=rows, note="The same by account."),) if rows else ()


def _or(text: Callable[[float], str], value: float | None) -> str:
    return "–" if value is None else text(value)


def _percent(value: float) -> str:
    return f"{100 * value:.0f}\N{NO-BREAK SPACE}%".replace("-", "−")


def _figures(several: Sequence[tuple[str, RunOutcome]]) -> tuple[Figure, ...]:
    # One axis for all runs, so that they can be compared.
    time = linear_axis("time (hours)", [job.finished_s / 3600 for _, one in several for job in one.jobs])
    return (
        _completion_figure(several),
        *(_fairness_figure(several) if any(_rhos(one) for _, one in several) else ()),
        _use_figure(several, time),
        *(_timeline_figure(label, one, time) for label, one in several),
    )


def _completion_figure(several: Sequence[tuple[str, RunOutcome]]) -> Figure:
    times = {label: sorted(job.completion_s for job in one.jobs) for label, one in several}
    axis = duration_axis(
        "completion time (logarithmic)", [time for found in times.values() for time in found]
    )
    chart = LineChart(
        title="How soon jobs are done",
        text="Share of jobs done within a time. " + _halves(times, duration_text),
        x=axis,
        panels=(Panel(y=_share_axis("share of jobs done (%)"), series=_distributions(times, axis)),),
    )
    return Figure(
        chart=chart,
        caption="Cumulative distribution of completion times, from submission to end. Left is sooner.",
        data=quantile_table(times, duration_text),
    )


def _fairness_figure(several: Sequence[tuple[str, RunOutcome]]) -> tuple[Figure, ...]:
    ratios = {label: sorted(_rhos(one)) for label, one in several}
    axis = log_axis(
        "finish-time fairness ρ (logarithmic)", [r for found in ratios.values() for r in found], around=1.0
    )
    chart = LineChart(
        title="Who pays for sharing",
        text="Share of jobs with a finish-time fairness up to a value. "
        + _halves(ratios, lambda r: f"{r:.2f}"),
        x=axis,
        panels=(Panel(y=_share_axis("share of jobs (%)"), series=_distributions(ratios, axis)),),
        marks=(Mark(x=1.0, text="as fast as alone on an equal share"),),
    )
    worst = "; ".join(f"{label} {found[-1]:.2f}" for label, found in ratios.items() if found)
    return (
        Figure(
            chart=chart,
            caption="Cumulative distribution of ρ, a job's completion time over what it would be alone on an "
            f"equal share of the cluster. Right of the line, sharing cost the job time. Worst: {worst}.",
            data=quantile_table(ratios, "{:.2f}".format),
        ),
    )


def _use_figure(several: Sequence[tuple[str, RunOutcome]], time: Axis) -> Figure:
    panels = []
    most = [0.0]
    for _, one in several:
        most += [max(record.gpus_up, record.goodput) for record in one.rounds]
    axis = linear_axis("GPUs", most)
    for label, one in several:
        series = [
            _over_time(
                "GPUs used", [(record.at_s, record.gpus_used) for record in one.rounds], 5, filled=True
            ),
            _over_time(
                "goodput (one-GPU equivalents)", [(record.at_s, record.goodput) for record in one.rounds], 0
            ),
        ]
        there = [(record.at_s, record.gpus_up - record.gpus_unmanaged) for record in one.rounds]
        if len({gpus for _, gpus in there}) > 1:
            series.append(_over_time("GPUs there", there, 1))
        panels.append(Panel(y=axis, title=label, height=150.0, series=tuple(series)))
    means = "; ".join(f"{label} {one.summary.avg_goodput:.1f}" for label, one in several)
    return Figure(
        chart=LineChart(
            title="GPUs used, and the goodput achieved with them",
            text=f"GPUs used by jobs, and goodput, over time. Mean goodput in one-GPU equivalents: {means}.",
            x=time,
            panels=tuple(panels),
        ),
        caption="Goodput is training progress, each job's measured in its own mean rate on one GPU: where "
        f"the line is below the area, GPUs buy less than one GPU's worth each. Mean goodput: {means}.",
        data=use_table(several),
    )


def _timeline_figure(label: str, one: RunOutcome, time: Axis) -> Figure:
    bars = tuple(_bar(job) for job in one.jobs)
    waited_s = float(np.mean([job.started_s - job.submitted_s for job in one.jobs]))
    return Figure(
        chart=Timeline(
            title=f"GPUs of each job over time: {label}",
            text=f"A row for each of {len(bars)} jobs, by application and submission. "
            f"Jobs waited {duration_text(waited_s)} on average before they first had GPUs.",
            x=time,
            bars=bars,
        ),
        caption="A row for each job, from submission to end: a thin line while it waits, a bar while it "
        "has GPUs, the thicker and stronger the more.",
        data=job_table(one),
    )


def _bar(job: JobOutcome) -> Bar:
    return Bar(
        name=job.name,
        group=job.application,
        begin=job.submitted_s / 3600,
        end=job.finished_s / 3600,
        gpu_changes=tuple((at_s / 3600, gpus) for at_s, gpus in job.gpu_changes),
    )


def _distributions(values: Mapping[str, Sequence[float]], axis: Axis) -> tuple[Series, ...]:
    """Return the cumulative distribution of each sorted list, from edge to edge of the axis."""
    series = []
    for style, (label, found) in enumerate(values.items()):
        shares = [(value, (index + 1) / len(found)) for index, value in enumerate(found)]
        series.append(
            Series(label=label, points=((axis.low, 0.0), *shares, (axis.high, 1.0)), style=style, step=True)
        )
    return tuple(series)


def _share_axis(label: str) -> Axis:
    return linear_axis(label, [0.0, 1.0], percent=True)


def _halves(values: Mapping[str, Sequence[float]], text: Callable[[float], str]) -> str:
    medians = [f"{label} {text(float(np.median(found)))}" for label, found in values.items() if found]
    return "Half of the jobs are at or below: " + "; ".join(medians) + "."


def _over_time(label: str, points: Sequence[tuple[float, float]], style: int, filled: bool = False) -> Series:
    return Series(
        label=label,
        points=_binned([(at_s / 3600, value) for at_s, value in points]),
        style=style,
        step=True,
        filled=filled,
    )


def _binned(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return means of groups of points, where there are more than `_MOST_POINTS`."""
    spans = spans_of(points, _MOST_POINTS)
    return tuple((span[0][0], sum(value for _, value in span) / len(span)) for span in spans)


def _rhos(one: RunOutcome) -> list[float]:
    return [job.rho for job in one.jobs if job.rho is not None]
