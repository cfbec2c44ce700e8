"""The report of several jobs beside each other: time, GPU hours and goodput, and their course."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pollux_slurm.document.charts.line_charts import LineChart, Panel, Series
from pollux_slurm.document.charts.scales import linear_axis
from pollux_slurm.document.charts.thinning import Point, known, thinned
from pollux_slurm.document.columns import Column, Data, Kind
from pollux_slurm.document.document import Document, Fact, Part, Plot
from pollux_slurm.report.job import JobHistory, facts_of
from pollux_slurm.report.parts.columns import MEASURE
from pollux_slurm.report.parts.job_plots import points_of
from pollux_slurm.report.tracked_loss import Losses, loss_part
from pollux_slurm.text import UNKNOWN, number_text

# What names a job is no measure of it.
_NO_MEASURES = ("slurm_job_id", "explanation", "speedups_are")


def jobs_document(
    histories: Sequence[JobHistory], *, made_at: datetime, losses: Sequence[Losses] = ()
) -> Document:
    """Return the comparison of two jobs or more; ratios are to the first. `losses` are of all, or of none."""
    numbers = [str(history.job.slurm_job_id) for history in histories]
    return Document(
        kind="jobs",
        title=f"Jobs {', '.join(numbers)}",
        lead=f"Each value is of a job's whole life; ratios are to job {numbers[0]}. Jobs that train other "
        "models, or on other data, have no goodput to compare.",
        parts=(
            Part(title="Beside each other", tables=(_measures(histories, numbers, made_at),)),
            _course(histories, numbers),
            *([loss_part(numbers, losses)] if losses else []),
        ),
        made_at=made_at,
        command=f"pollux report job {' '.join(numbers)}",
    )


def _measures(histories: Sequence[JobHistory], numbers: Sequence[str], made_at: datetime) -> Data:
    """Return a row for each fact of a job's report, with a text, a value and a ratio for each job."""
    facts = [
        {fact.key: fact for fact in (_time_to_end(history, made_at), *facts_of(history))}
        for history in histories
    ]
    keys = [key for key in dict.fromkeys(key for one in facts for key in one) if key not in _NO_MEASURES]
    rows = []
    for key in keys:
        found = [one.get(key) for one in facts]
        title = next(fact.title for fact in found if fact is not None)
        values = [None if fact is None else fact.value for fact in found]
        texts = [UNKNOWN if fact is None else fact.shown() for fact in found]
        ratios = [_ratio(value, values[0]) for value in values[1:]]
        rows.append((key, title, *texts, *ratios, *values))
    return Data(
        key="comparison",
        columns=(
            Column("key", "key", Kind.TEXT, shown=False),
            MEASURE,
            *(Column(f"text_{number}", f"job {number}", Kind.TEXT) for number in numbers),
            *(Column(f"ratio_{number}", f"ratio, job {number}") for number in numbers[1:]),
            *(Column(f"value_{number}", f"job {number}", shown=False) for number in numbers),
        ),
        rows=tuple(rows),
    )


def _time_to_end(history: JobHistory, made_at: datetime) -> Fact:
    job = history.job
    took_s = ((job.finished_at or made_at) - job.submitted_at).total_seconds()
    title = "Time since submission" if job.finished_at is None else "Time from submission to end"
    return Fact("time_s", title, took_s, Kind.SECONDS)


def _ratio(value: object, first: object) -> float | None:
    """Return the ratio of two numbers, None where one is none, or the first is 0."""
    numbers = isinstance(value, int | float) and isinstance(first, int | float)
    return float(value) / float(first) if numbers and first else None  # type: ignore[arg-type]


def _course(histories: Sequence[JobHistory], numbers: Sequence[str]) -> Part:
    """Return goodput and GPUs of the jobs over the time since each was submitted."""
    lines: dict[str, list[Series]] = {"goodput": [], "num_gpus": []}
    values: dict[str, list[float]] = {"goodput": [], "num_gpus": []}
    hours = [0.0]
    for style, (number, history) in enumerate(zip(numbers, histories, strict=True)):
        begin = history.job.submitted_at.timestamp()
        for key, series in lines.items():
            points: list[Point] = [
                ((at - begin) / 3600, value) for at, value in points_of(history.samples, key)
            ]
            values[key] += known(points)
            hours += [at for at, _ in points]
            if points:
                label = f"job {number}"
                series.append(Series(label=label, points=thinned(points), style=style, step=key != "goodput"))
    if not values["goodput"]:
        return Part(title="Over time", text="None of these jobs has reported a goodput.")
    highest = max(values["goodput"])
    chart = LineChart(
        title="Goodput and GPUs since submission",
        text=f"The highest goodput of these jobs was {number_text(highest)} examples per second.",
        x=linear_axis("time since submission (h)", hours),
        panels=(
            Panel(
                y=linear_axis("goodput (examples/s)", values["goodput"]),
                series=tuple(lines["goodput"]),
                height=210.0,
            ),
            Panel(y=linear_axis("GPUs", values["num_gpus"]), series=tuple(lines["num_gpus"]), height=110.0),
        ),
    )
    caption = "A line for each job, from its submission on; gaps: no reports, as during a wait or a move."
    return Part(title="Over time", plots=(Plot(chart=chart, caption=caption),))
