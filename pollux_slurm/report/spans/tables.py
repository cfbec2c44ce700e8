"""Two spans of time beside each other: times of jobs, GPU hours, the mix of jobs, accounts and users."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean

from pollux_slurm.document.charts.line_charts import LineChart, Panel, distribution
from pollux_slurm.document.charts.scales import Axis, duration_axis, linear_axis
from pollux_slurm.document.charts.stacked_bars import Stack, StackedBars
from pollux_slurm.document.columns import Column, Data, Kind, Value, table_of, text_of
from pollux_slurm.document.document import Part, Plot
from pollux_slurm.report.parts.columns import GPU_HOURS, MEASURE, NUM_JOBS, SINCE, UNTIL
from pollux_slurm.report.parts.common import share
from pollux_slurm.report.parts.groups import NAMELESS
from pollux_slurm.report.spans.jobs import SIZES, Span, SpanJob, quartiles, relative
from pollux_slurm.text import duration_text, number_text

Measure = Callable[[SpanJob], float | None]


MEASURES: tuple[tuple[str, Measure], ...] = (
    ("completion time", lambda job: job.completion_s),
    ("waiting time", lambda job: job.waited_s),
)
_GROUPS: tuple[tuple[str, Callable[[SpanJob], bool]], ...] = (
    ("all", lambda _: True),
    ("adaptive", lambda job: job.adaptive),
    ("other", lambda job: not job.adaptive),
)


def values_of(jobs: Sequence[SpanJob], measure: Measure) -> list[float]:
    """Return a measure of all jobs that have it, in ascending order."""
    return sorted(value for value in map(measure, jobs) if value is not None)


_SPAN = Column("span", "span", Kind.TEXT, value=lambda span: span.name)


def times_part(before: Span, after: Span) -> Part:
    """Return how long jobs took and waited: quartiles, and distributions."""
    rows: list[tuple[Value, ...]] = []
    for name, measure in MEASURES:
        for group, belongs in _GROUPS:
            if group != "all" and not any(job.adaptive for job in (*before.jobs, *after.jobs)):
                continue
            medians: list[float | None] = []
            for span in (before, after):
                values = values_of([job for job in span.jobs if belongs(job)], measure)
                first, median, third = quartiles(values)
                medians.append(median)
                change = relative(*medians) if len(medians) == 2 else None
                mean = fmean(values) if values else None
                rows.append((name, group, span.name, len(values), first, median, third, mean, change))
    columns = (
        MEASURE,
        Column("jobs", "jobs", Kind.TEXT),
        _SPAN,
        Column("num_jobs", "number", Kind.COUNT),
        Column("first_quartile_s", "first quartile", Kind.SECONDS),
        Column("median_s", "median", Kind.SECONDS),
        Column("third_quartile_s", "third quartile", Kind.SECONDS),
        Column("mean_s", "mean", Kind.SECONDS),
        Column("median_change", "change of the median", Kind.SHARE),
    )
    data = Data(
        key="times",
        columns=columns,
        rows=tuple(rows),
        note="Completion time: from submission to the end, of jobs that ended. Waiting time: from submission "
        "to the first start; a dependency or a begin time counts as waiting.",
    )
    found = [[values_of(span.jobs, measure) for span in (before, after)] for _, measure in MEASURES]
    axis = duration_axis("time (logarithmic)", chain.from_iterable(chain.from_iterable(found)))
    y = linear_axis("share of jobs (%)", [0.0, 1.0], percent=True)
    panels = tuple(
        Panel(
            y=y,
            title=name,
            height=200.0,
            series=tuple(
                distribution(span.name, values, axis, style)
                for style, (span, values) in enumerate(zip((before, after), pair, strict=True))
                if values
            ),
        )
        for (name, _), pair in zip(MEASURES, found, strict=True)
    )
    text = " ".join(
        f"Half of the jobs had a {name} of at most {duration_text(quartiles(pair[0])[1])} before and "
        f"{duration_text(quartiles(pair[1])[1])} after."
        for (name, _), pair in zip(MEASURES, found, strict=True)
    )
    chart = LineChart(title="How long jobs took and waited", text=text, x=axis, panels=panels)
    caption = "Share of jobs with a time up to a value. The line further to the left is the shorter time."
    return Part(
        title="Completion and waiting times",
        text=text,
        plots=(Plot(chart=chart, caption=caption),),
        tables=(data,),
    )


_HOURS = (
    _SPAN,
    replace(SINCE, shown=False, value=lambda span: span.range.since),
    replace(UNTIL, shown=False, value=lambda span: span.range.until),
    replace(NUM_JOBS, value=lambda span: len(span.jobs)),
    Column("num_without", "without GPUs or a start", Kind.COUNT),
    GPU_HOURS,
    Column("gpu_hours_a_day", "GPU hours a day", value=lambda span: span.gpu_hours / span.days),
    Column(
        "adaptive_share",
        "of adaptive jobs",
        Kind.SHARE,
        value=lambda span: span.share(lambda job: job.adaptive),
    ),
    Column(
        "completed_share",
        "of jobs that completed",
        Kind.SHARE,
        value=lambda span: span.share(lambda job: job.state == "completed"),
    ),
    Column("progress_share", "with progress", Kind.SHARE, value=lambda span: measured_shares(span)[0]),
    Column("useful_share", "useful", Kind.SHARE, value=lambda span: measured_shares(span)[1]),
)


def hours_part(before: Span, after: Span) -> Part:
    """Return GPU hours and what was made of them."""
    note = (
        "GPU hours of the jobs that were submitted in a span, also those after its end. With progress: the "
        "share of adaptive jobs' GPU hours in which they reported training. Useful: these, weighted with "
        "their statistical efficiency. Slurm knows neither of other jobs."
    )
    return Part(title="GPU hours", tables=(table_of("gpu_hours", (before, after), _HOURS, note=note),))


def measured_shares(span: Span) -> tuple[float | None, float | None]:
    """Return the shares of the measured GPU hours with progress, and after efficiency."""
    measured = span.measured_gpu_hours
    return share(span.trained_gpu_hours, measured), share(span.useful_gpu_hours, measured)


def mix_part(before: Span, after: Span) -> Part:
    """Return which jobs there were, by number of GPUs."""
    spans = (before, after)
    shares = [span.shares_by(lambda job: job.size) for span in spans]
    counted = [Counter(job.size for job in span.jobs) for span in spans]
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (size, *(one[size] for one in counted), *(one.get(size, 0.0) for one in shares)) for size in SIZES
    )
    columns = (
        Column("num_gpus", "size (GPUs)", Kind.TEXT),
        Column("num_jobs_before", "jobs before", Kind.COUNT),
        Column("num_jobs_after", "jobs after", Kind.COUNT),
        Column("share_before", "GPU hours before", Kind.SHARE),
        Column("share_after", "GPU hours after", Kind.SHARE),
    )
    stacks = tuple(
        Stack(
            name=span.name,
            low=float(place),
            high=place + 1.0,
            parts=tuple(found.get(size, 0.0) for size in SIZES),
        )
        for place, (span, found) in enumerate(zip(spans, shares, strict=True))
    )
    chart = StackedBars(
        title="GPU hours by the jobs' number of GPUs",
        text="Shares of the GPU hours before and after, by the number of GPUs of the jobs.",
        x=Axis(label="span", low=0.0, high=2.0, ticks=(0.5, 1.5), tick_texts=("before", "after")),
        y=linear_axis("share of the GPU hours (%)", [0.0, 1.0], percent=True),
        labels=SIZES,
        stacks=stacks,
        value_text=lambda share: text_of(share, Kind.SHARE),
        height=200.0,
    )
    data = Data(
        key="mix",
        columns=columns,
        rows=rows,
        note="An adaptive job counts with its mean from its start to its end, or to now; "
        "any other with what Slurm gave it.",
    )
    caption = "Bars alike: jobs of the same sizes took the same part of the cluster."
    return Part(title="Mix of jobs", plots=(Plot(chart=chart, caption=caption),), tables=(data,))


def groups_part(before: Span, after: Span) -> Part:
    """Return how accounts and users fared."""
    note = (
        "Slowdown: completion time over the time since the start, at least 1; its median shows who waits for "
        "the cluster. GPU hours are by day, so that spans of different length can be compared."
    )
    return Part(
        title="Fairness between accounts and users",
        text=" ".join(_spread_text(span) for span in (before, after)),
        tables=(
            _groups("accounts", "account", lambda job: job.account or NAMELESS, before, after, note),
            _groups("users", "user", lambda job: job.user_name or NAMELESS, before, after, ""),
        ),
    )


def _groups(
    key: str, title: str, group: Callable[[SpanJob], str], before: Span, after: Span, note: str
) -> Data:
    spans = (before, after)
    columns = [Column(title, title, Kind.TEXT)]
    for name, text, kind in (
        ("num_jobs", "jobs", Kind.COUNT),
        ("gpu_hours_a_day", "GPU hours a day", Kind.NUMBER),
        ("median_waiting_s", "median waiting time", Kind.SECONDS),
        ("median_slowdown", "median slowdown", Kind.NUMBER),
    ):
        columns += [Column(f"{name}_{span.name}", f"{text} {span.name}", kind) for span in spans]
    found = []
    for name in sorted({group(job) for span in spans for job in span.jobs}):
        own = [[job for job in span.jobs if group(job) == name] for span in spans]
        per_day = [
            sum(job.gpu_hours for job in jobs) / span.days for jobs, span in zip(own, spans, strict=True)
        ]
        waited = [_median(jobs, lambda job: job.waited_s) for jobs in own]
        slowdowns = [_median(jobs, lambda job: job.slowdown) for jobs in own]
        found.append((-sum(per_day), (name, *map(len, own), *per_day, *waited, *slowdowns)))
    rows = tuple(row for _, row in sorted(found, key=lambda one: one[0]))
    return Data(key=key, title=f"By {title}", columns=tuple(columns), rows=rows, note=note)


def _spread_text(span: Span) -> str:
    by_account: defaultdict[str, list[SpanJob]] = defaultdict(list)
    for job in span.jobs:
        by_account[job.account].append(job)
    medians = [_median(jobs, lambda job: job.slowdown) for jobs in by_account.values()]
    known = sorted(median for median in medians if median is not None)
    if len(known) < 2:
        return f"There was one account at most with jobs that ended {span.name}."
    return (
        f"{span.name.capitalize()}, the median slowdown of accounts was between "
        f"{number_text(known[0])} and {number_text(known[-1])}."
    )


def _median(jobs: Sequence[SpanJob], measure: Measure) -> float | None:
    return quartiles(values_of(jobs, measure))[1]
