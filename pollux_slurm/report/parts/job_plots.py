"""One job over time: goodput and GPUs, batch size and statistical efficiency."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pollux_slurm.document.charts.line_charts import LineChart, Mark, Panel, Series
from pollux_slurm.document.charts.scales import Axis, linear_axis
from pollux_slurm.document.charts.thinning import Point, known, thinned, with_gaps
from pollux_slurm.document.charts.time_axes import Range, time_axis
from pollux_slurm.document.columns import Column, Data, Kind, table_of
from pollux_slurm.document.document import Part, Plot
from pollux_slurm.report.parts.columns import AT, EFFICIENCY, EPOCH, NUM_GPUS, RUN
from pollux_slurm.store.reporting.view_rows import JobEvent, ReallocationEntry, SamplePoint
from pollux_slurm.text import plural, range_text

_MOST_MARKS = 24
# Reports come evenly; where one is this many times as late as is usual, nobody knows what went on.
_LATE = 4


_SAMPLES = (
    AT,
    RUN,
    NUM_GPUS,
    Column("global_batch_size", "batch size (examples)", Kind.COUNT),
    Column("throughput", "throughput (examples/s)"),
    EFFICIENCY,
    Column("goodput", "goodput (examples/s)"),
    Column("predicted_throughput", "predicted throughput (examples/s)"),
    Column("progress", "scale-invariant iterations", shown=False),
    EPOCH,
)


def history_part(
    samples: Sequence[SamplePoint],
    events: Sequence[JobEvent],
    moves: Sequence[ReallocationEntry],
    shown: Range,
) -> Part:
    """Return the plots over `shown`, or a text where the job has neither run nor reported."""
    held = _held(events, shown)
    if not samples and not held:
        return Part(
            title="Over time",
            text="The job has not held GPUs and not reported in this time: there is nothing to plot.",
            tables=(_data(()),),
        )
    x = time_axis([shown.since, shown.until])
    summary = "" if samples else "The job has held GPUs, but none of its runs has reported a measurement."
    plots = [Plot(chart=_goodput(samples, held, moves, x), caption=_GOODPUT, data=_data(samples))]
    if samples:
        plots.append(Plot(chart=_batch(samples, x), caption=_BATCH))
    return Part(title="Over time", text=summary, plots=tuple(plots))


_GOODPUT = (
    "Throughput is what the hardware did, goodput the part of it that brought training forward. Dotted "
    "lines: reallocations. Gaps: no reports, as during a move."
)
_BATCH = (
    "Efficiency is the progress per example, against that at the batch size the job was written for. A "
    "larger batch uses more GPUs well, and each example in it brings less, until gradients get noisier."
)


def _data(samples: Sequence[SamplePoint]) -> Data:
    return table_of("samples", samples, _SAMPLES, keep="spread")


def _goodput(
    samples: Sequence[SamplePoint],
    held: Sequence[Point],
    moves: Sequence[ReallocationEntry],
    x: Axis,
) -> LineChart:
    goodput, throughput = points_of(samples, "goodput"), points_of(samples, "throughput")
    moved = [row.planned_at for row in moves if row.step == "confirmed"]
    goodputs = known(goodput)
    summary = f"Goodput was {_span(goodputs)} examples per second" if goodputs else "No goodput is known"
    gpus = _span(known(held))
    return LineChart(
        title="Goodput and GPUs over time",
        text=f"{summary}, on {gpus} GPUs, with {plural(len(moved), 'completed reallocation')}.",
        x=x,
        panels=(
            Panel(
                y=linear_axis("examples/s", [*goodputs, *known(throughput)]),
                series=(
                    Series(label="throughput", points=thinned(throughput), style=5),
                    Series(label="goodput (throughput × efficiency)", points=thinned(goodput), style=0),
                ),
                height=210.0,
            ),
            Panel(
                y=linear_axis("GPUs", known(held)),
                series=(Series(label="GPUs held", points=tuple(held), style=2, step=True, filled=True),),
                height=110.0,
            ),
        ),
        marks=tuple(Mark(x=at.timestamp(), text="") for at in moved) if len(moved) <= _MOST_MARKS else (),
    )


def _batch(samples: Sequence[SamplePoint], x: Axis) -> LineChart:
    batch, efficiency = points_of(samples, "global_batch_size"), points_of(samples, "efficiency")
    shares = [100 * share for share in known(efficiency)]
    efficiency_text = (
        f"Statistical efficiency was {_span(shares)} %." if shares else "No efficiency is known yet."
    )
    return LineChart(
        title="Batch size and statistical efficiency over time",
        text=f"The global batch size was {_span(known(batch))} examples per step. {efficiency_text}",
        x=x,
        panels=(
            Panel(
                y=linear_axis("batch (examples)", known(batch)),
                series=(Series(label="global batch size", points=thinned(batch), style=0, step=True),),
                height=140.0,
            ),
            Panel(
                y=linear_axis("efficiency (%)", [0.0, 1.0], percent=True),
                series=(Series(label="statistical efficiency", points=thinned(efficiency), style=0),),
                height=140.0,
            ),
        ),
        legend=False,
    )


def points_of(rows: Sequence[SamplePoint], key: str) -> list[Point]:
    """Return a column over time, in seconds since 1970, with gaps where values or reports are missing."""
    moments = [row.at.timestamp() for row in rows]
    return with_gaps(moments, [getattr(row, key) for row in rows], late=_LATE, runs=[row.run for row in rows])


def _held(events: Sequence[JobEvent], shown: Range) -> list[Point]:
    """Return the GPUs held over the time shown, with gaps while there were none."""
    points: list[Point] = []
    intervals = [
        (*shown.part_of(row.at, row.until), float(row.num_gpus))
        for row in events
        if row.event == "allocated" and row.num_gpus
    ]
    for begin, end, num_gpus in sorted(intervals):
        if begin == end:
            continue
        if points and begin > points[-1][0]:
            points.append((points[-1][0], math.nan))
        points += [(begin, num_gpus), (end, num_gpus)]
    return points


def _span(values: Sequence[float]) -> str:
    if not values:
        return "an unknown number of"
    return range_text(values)
