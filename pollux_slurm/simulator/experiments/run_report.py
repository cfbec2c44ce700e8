"""The report of some simulations: tables, and the plots that papers on scheduling show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pollux_slurm.document.charts.line_charts import LineChart, Mark, Panel, Series, distribution
from pollux_slurm.document.charts.scales import Axis, duration_axis, linear_axis, log_axis
from pollux_slurm.document.charts.thinning import averaged
from pollux_slurm.document.charts.timeline import Bar, Timeline
from pollux_slurm.document.columns import Kind
from pollux_slurm.document.document import Document, Fact, Part, Plot
from pollux_slurm.document.forms.html import document_html
from pollux_slurm.simulator.experiments.axis_plots import axis_plots
from pollux_slurm.simulator.experiments.kept_runs import KeptRun, axis_text, table_rows, varying_axes
from pollux_slurm.simulator.experiments.run_tables import (
    account_table,
    comparison_table,
    job_table,
    quantile_table,
    use_table,
)
from pollux_slurm.simulator.results.files import write_text
from pollux_slurm.simulator.results.outcomes import JobOutcome
from pollux_slurm.simulator.results.summary import RunOutcome
from pollux_slurm.text import duration_text, plural

# No screen shows more points side by side.
_MOST_POINTS = 500

# Keys of the experiment that the page names, whatever their values; others where they are set.
_ALWAYS = ("rules", "nodes", "interval_s", "restart_delay_s")


def write_report(file: Path, results: Sequence[KeptRun]) -> None:
    """Write the page of an experiment's runs. Raises `UsageError`."""
    write_text(file, document_html(report_document(results)))


def report_document(results: Sequence[KeptRun]) -> Document:
    """Return the page of some runs: a table, plots along the axes, and plots of single workloads.

    The last are those of runs on equal points, where all were run just now.
    """
    rows = table_rows(results)
    axes = varying_axes(rows)
    styles = {label: style for style, label in enumerate(dict.fromkeys(one.label for one in results))}
    tables = (comparison_table(rows, axes), account_table(results))
    parts = [Part(title="Comparison", text=_seeds(results), tables=tables)]
    plots = axis_plots(rows, styles)
    if plots:
        parts.append(Part(title="Axes", plots=plots))
    workloads: dict[str, list[tuple[str, RunOutcome]]] = {}
    for one in results:
        if one.outcome is not None and set(axes) <= {"workload"}:
            workloads.setdefault(one.workload, []).append((one.label, one.outcome))
    for workload, several in workloads.items():
        if len(dict(several)) == len(several):
            title = workload if len(workloads) > 1 else "Plots"
            parts.append(Part(title=title, plots=_plots(several)))
    return Document(
        kind="simulation",
        title="Scheduling policies compared",
        lead=_lead(results),
        facts=_facts(results[0], axes) if results else (),
        parts=tuple(parts),
    )


def _seeds(results: Sequence[KeptRun]) -> str:
    seeds = sorted({result.seed for result in results if result.seed is not None})
    return f"Seeds of the workloads: {', '.join(map(str, seeds))}." if seeds else ""


def _lead(results: Sequence[KeptRun]) -> str:
    workloads = {(one.workload, one.summary["num_jobs"]) for one in results}
    num_jobs = sum(number for _, number in workloads)
    jobs = plural(num_jobs, "job")
    several = f"{len(workloads)} workloads of {jobs} in all" if len(workloads) > 1 else jobs
    runs = plural(len(results), "run")
    return f"Simulated, not measured: {runs} of {several}, replayed with a clock instead of a cluster."


def _facts(one: KeptRun, axes: Mapping[str, str]) -> tuple[Fact, ...]:
    """Return the keys that are equal for all runs, with their values."""
    return tuple(
        Fact(name, name, axis_text(value))
        for name, value in one.place.items()
        if name not in axes and (name in _ALWAYS or value not in (None, False, 0, "users"))
    )


def _plots(several: Sequence[tuple[str, RunOutcome]]) -> tuple[Plot, ...]:
    # One axis for all runs, so that they can be compared.
    time = linear_axis("time (hours)", [job.finished_s / 3600 for _, one in several for job in one.jobs])
    return (
        _completion_plot(several),
        *(_fairness_plot(several) if any(_rhos(one) for _, one in several) else ()),
        _use_plot(several, time),
        *(_timeline_plot(label, one, time) for label, one in several),
    )


def _completion_plot(several: Sequence[tuple[str, RunOutcome]]) -> Plot:
    times = {label: sorted(job.completion_s for job in one.jobs) for label, one in several}
    axis = duration_axis(
        "completion time (logarithmic)", [time for found in times.values() for time in found]
    )
    chart = LineChart(
        title="How soon jobs are done",
        text="Share of jobs done within a time. " + _halves(times, duration_text),
        x=axis,
        panels=(Panel(y=_share_axis("share of jobs done (%)"), series=_lines(times, axis)),),
    )
    return Plot(
        chart=chart,
        caption="Cumulative distribution of completion times, from submission to end. Left is sooner.",
        data=quantile_table("completion_times", times, Kind.SECONDS),
    )


def _fairness_plot(several: Sequence[tuple[str, RunOutcome]]) -> tuple[Plot, ...]:
    ratios = {label: sorted(_rhos(one)) for label, one in several}
    axis = log_axis(
        "finish-time fairness ρ (logarithmic)", [r for found in ratios.values() for r in found], around=1.0
    )
    chart = LineChart(
        title="Who pays for sharing",
        text="Share of jobs with a finish-time fairness up to a value. "
        + _halves(ratios, lambda r: f"{r:.2f}"),
        x=axis,
        panels=(Panel(y=_share_axis("share of jobs (%)"), series=_lines(ratios, axis)),),
        marks=(Mark(x=1.0, text="as fast as alone on an equal share"),),
    )
    worst = "; ".join(f"{label} {found[-1]:.2f}" for label, found in ratios.items() if found)
    return (
        Plot(
            chart=chart,
            caption="Cumulative distribution of ρ, a job's completion time over what it would be alone on an "
            f"equal share of the cluster. Right of the line, sharing cost the job time. Worst: {worst}.",
            data=quantile_table("fairness", ratios, Kind.NUMBER),
        ),
    )


def _use_plot(several: Sequence[tuple[str, RunOutcome]], time: Axis) -> Plot:
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
    return Plot(
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


def _timeline_plot(label: str, one: RunOutcome, time: Axis) -> Plot:
    bars = tuple(_bar(job) for job in one.jobs)
    waited_s = float(np.mean([job.started_s - job.submitted_s for job in one.jobs]))
    return Plot(
        chart=Timeline(
            title=f"GPUs of each job over time: {label}",
            text=f"A row for each of {len(bars)} jobs, by application and submission. "
            f"Jobs waited {duration_text(waited_s)} on average before they first had GPUs.",
            x=time,
            bars=bars,
        ),
        caption="A row for each job, from submission to end: a thin line while it waits, a bar while it "
        "has GPUs, the thicker and stronger the more.",
        data=job_table(label, one),
    )


def _bar(job: JobOutcome) -> Bar:
    return Bar(
        name=job.name,
        group=job.application,
        begin=job.submitted_s / 3600,
        end=job.finished_s / 3600,
        gpu_changes=tuple((at_s / 3600, gpus) for at_s, gpus in job.gpu_changes),
    )


def _lines(values: Mapping[str, Sequence[float]], axis: Axis) -> tuple[Series, ...]:
    pairs = enumerate(values.items())
    return tuple(distribution(label, found, axis, style) for style, (label, found) in pairs if found)


def _share_axis(label: str) -> Axis:
    return linear_axis(label, [0.0, 1.0], percent=True)


def _halves(values: Mapping[str, Sequence[float]], text: Callable[[float], str]) -> str:
    medians = [f"{label} {text(float(np.median(found)))}" for label, found in values.items() if found]
    return "Half of the jobs are at or below: " + "; ".join(medians) + "."


def _over_time(label: str, points: Sequence[tuple[float, float]], style: int, filled: bool = False) -> Series:
    return Series(
        label=label,
        points=averaged([(at_s / 3600, value) for at_s, value in points], _MOST_POINTS),
        style=style,
        step=True,
        filled=filled,
    )


def _rhos(one: RunOutcome) -> list[float]:
    return [job.rho for job in one.jobs if job.rho is not None]
