"""The report of some simulations: tables, and the plots that papers on scheduling show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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
from pollux_slurm.simulator.experiments.run_values import job_table, quantile_table, spans_of, use_table
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.experiments.sweep import SweepResult
from pollux_slurm.simulator.experiments.sweep_report import setting_facts, sweep_sections
from pollux_slurm.simulator.results.files import write_text
from pollux_slurm.simulator.results.outcomes import JobOutcome
from pollux_slurm.simulator.results.summary import RunOutcome, Summary

# No screen shows more points side by side.
_MOST_POINTS = 500

_SUMMARY_NOTE = (
    "Average, median, p90 and p99 are of completion times, from submission to end; ratio: the average over "
    "that of the first policy of the same workload; node hours: while nodes were there, GPU hours: while "
    "jobs had GPUs; restarts, regroups (moves in place): per job; lost: share of GPU time without progress "
    "at starts, moves and failures; ρ: completion time over that alone on an equal share of the cluster "
    "(finish-time fairness: above 1, sharing cost the job time)."
)
_WORST_RHO, _UNFAIR = "worst\N{NO-BREAK SPACE}ρ", "ρ\N{NO-BREAK SPACE}>\N{NO-BREAK SPACE}1"


def write_report(
    file: Path,
    outcomes: Sequence[RunOutcome],
    *,
    labels: Sequence[str],
    settings: RunSettings,
    swept: Sequence[SweepResult] = (),
) -> None:
    """Write the page of some runs, each with its label, and of a sweep. Raises `UsageError`."""
    write_text(file, render_page(report_page(outcomes, labels=labels, settings=settings, swept=swept)))


def report_page(
    outcomes: Sequence[RunOutcome],
    *,
    labels: Sequence[str],
    settings: RunSettings,
    swept: Sequence[SweepResult] = (),
) -> Page:
    """Return the page of some runs, with sections for each workload."""
    runs: dict[str, list[tuple[str, RunOutcome]]] = {}
    for label, one in zip(labels, outcomes, strict=True):
        runs.setdefault(one.summary.workload, []).append((label, one))
    sections = [Section(title="Summary", tables=_tables(runs))]
    for workload, several in runs.items():
        sections.append(Section(title=workload if len(runs) > 1 else "Plots", figures=_figures(several)))
    styles = {label: style for style, label in enumerate(dict.fromkeys(labels))}
    sections += sweep_sections(swept, styles)
    return Page(
        title="Scheduling policies compared",
        lead=_lead(outcomes, len(runs)),
        facts=setting_facts(settings),
        sections=tuple(sections),
    )


def _lead(outcomes: Sequence[RunOutcome], num_workloads: int) -> str:
    num_jobs = sum({one.summary.workload: one.summary.num_jobs for one in outcomes}.values())
    jobs = f"{num_jobs} job" + "s" * (num_jobs != 1)
    several = f"{num_workloads} workloads of {jobs} in all" if num_workloads > 1 else jobs
    return f"Simulated, not measured: {several}, replayed with a clock instead of a cluster."


def _tables(runs: Mapping[str, Sequence[tuple[str, RunOutcome]]]) -> tuple[Table, ...]:
    named = [
        (label if len(runs) == 1 else f"{workload}: {label}", one.summary, several[0][1].summary.avg_jct_s)
        for workload, several in runs.items()
        for label, one in several
    ]
    columns = (
        *("policy", "average (min)", "ratio", "median (min)", "p90 (h)", "p99 (h)", "makespan (h)"),
        *("node hours", "GPU hours", "restarts", "regroups", "lost", _WORST_RHO, _UNFAIR),
    )
    rows = tuple(_row(name, found, first_s) for name, found, first_s in named)
    accounts = tuple(
        (
            f"{name}: {account}",
            f"{got.num_jobs}",
            minutes(got.avg_jct_s),
            f"{got.gpu_hours:,.1f}",
            _or_dash(got.rho_worst),
            _percent(got.rho_share_above_1),
        )
        for name, found, _ in named
        for account, got in found.accounts.items()
    )
    by_account = Table(
        columns=("account", "jobs", "average (min)", "GPU hours", _WORST_RHO, _UNFAIR),
        rows=accounts,
        note="The same by account.",
    )
    return (Table(columns=columns, rows=rows, note=_SUMMARY_NOTE), *([by_account] if accounts else []))


def _row(name: str, found: Summary, first_s: float) -> tuple[str, ...]:
    return (
        name,
        minutes(found.avg_jct_s),
        f"{found.avg_jct_s / first_s:.3f}",
        minutes(found.p50_jct_s),
        *(hours(value) for value in (found.p90_jct_s, found.p99_jct_s, found.makespan_s)),
        f"{sum(found.node_hours.values()):,.0f}",
        f"{found.gpu_hours:,.0f}",
        f"{found.restarts_per_job:.2f}",
        f"{found.regroups_per_job:.2f}",
        f"{100 * found.restart_share:.1f}\N{NO-BREAK SPACE}%",
        _or_dash(found.rho_worst),
        _percent(found.rho_share_above_1),
    )


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


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f}\N{NO-BREAK SPACE}%"
