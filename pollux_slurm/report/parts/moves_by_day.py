"""Reallocations of many jobs: the standstill of each day by its parts, and the longest ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, timezone

from pollux_slurm.document.charts.move_bars import COST_PARTS
from pollux_slurm.document.charts.scales import linear_axis
from pollux_slurm.document.charts.stacked_bars import StackedBars, day_stacks
from pollux_slurm.document.charts.time_axes import Range, days_axis
from pollux_slurm.document.columns import Column, Data, table_of
from pollux_slurm.document.document import Part, Plot
from pollux_slurm.report.parts.columns import ACCOUNT, DAY, JOB, USER
from pollux_slurm.report.parts.job_moves import PLANNED, costs_text, lost_s, move_columns, parts_s
from pollux_slurm.store.reporting.view_rows import ReallocationEntry
from pollux_slurm.text import number_text, plural

_BY_DAY = (
    DAY,
    *(
        Column(f"{key}_min", f"{label} (min)")
        for key, (label, _) in zip(("checkpoint", "queue", "launch", "regroup"), COST_PARTS, strict=True)
    ),
)


def moves_by_day_part(rows: Sequence[ReallocationEntry], range_: Range) -> Part:
    """Return the part about reallocations of running jobs, rows of reallocation_history."""
    moves = sorted((row for row in rows if row.moves_running), key=lambda row: -(lost_s(row) or 0.0))
    columns = move_columns(moves, JOB, USER, ACCOUNT, PLANNED)
    data = table_of(
        "reallocations",
        moves,
        columns,
        title="The longest standstills first",
        note="Goodput in examples/s, means over the run before and the run after.",
    )
    if not moves:
        return Part(title="Reallocations", text="No running job was moved in this time.", tables=(data,))
    done = [move for move in moves if move.step == "confirmed"]
    summary = (
        f"{plural(len(moves), 'move')} of running jobs, {len(done):,} of them completed; {costs_text(done)}."
    )
    is_measured = any(lost_s(move) is not None for move in done)
    minutes = _minutes_by_day(done)
    chart = _chart(minutes, range_, summary)
    plots = (Plot(chart=chart, caption=_CAPTION, data=_by_day(minutes)),) if is_measured else ()
    return Part(title="Reallocations", text=summary, plots=plots, tables=(data,))


_CAPTION = (
    "Minutes of standstill of all jobs that were moved on a day (UTC), by what they waited for: the "
    "checkpoint, Slurm (stopping, queueing, starting), and the launch up to the first step; for moves in "
    "place, the regroup."
)


def _minutes_by_day(done: Sequence[ReallocationEntry]) -> dict[date, list[float]]:
    """Return the minutes of standstill of each day (UTC) by `COST_PARTS`, in order."""
    days: defaultdict[date, list[float]] = defaultdict(lambda: [0.0] * len(COST_PARTS))
    for move in done:
        day = days[move.planned_at.astimezone(timezone.utc).date()]
        for place, seconds in enumerate(parts_s(move)):
            day[place] += seconds / 60
    return dict(sorted(days.items()))


def _by_day(minutes: Mapping[date, Sequence[float]]) -> Data:
    return Data(
        key="standstill",
        columns=_BY_DAY,
        rows=tuple((day, *parts) for day, parts in minutes.items()),
        keep="last",
    )


def _chart(minutes: Mapping[date, Sequence[float]], range_: Range, summary: str) -> StackedBars:
    return StackedBars(
        title="Standstill for reallocations by day",
        text=summary,
        x=days_axis(minutes, range_),
        y=linear_axis("standstill (min per day)", map(sum, minutes.values())),
        labels=tuple(label for label, _ in COST_PARTS),
        styles=tuple(style for _, style in COST_PARTS),
        stacks=day_stacks(minutes),
        value_text=lambda value: f"{number_text(value)} min",
        height=200.0,
    )
