"""The part of a report about reallocations: what each cost in standstill and brought in goodput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from pollux_slurm.document.charts.move_bars import MoveChart, MoveRow
from pollux_slurm.document.columns import Column, Kind, table_of
from pollux_slurm.document.document import Part, Plot
from pollux_slurm.report.parts.columns import REALLOCATION, ROUND, STANDSTILL_IN_PLACE, WAY
from pollux_slurm.store.reporting.view_rows import JobEvent, ReallocationEntry
from pollux_slurm.text import duration_text, number_text, plural

_MOST_ROWS = 40
_ENDS = {"rolled_back": "rolled back", "failed": "failed"}


def is_in_place(row: ReallocationEntry) -> bool:
    return row.way == "in_place"


def lost_s(row: ReallocationEntry) -> float | None:
    """Return for how long training stood still, seconds."""
    return row.standstill_s if is_in_place(row) else row.total_s


def _queue_s(row: ReallocationEntry) -> float | None:
    """Return the part of the standstill in which Slurm stopped, kept and started the job, seconds."""
    if row.total_s is None:
        return None
    return max(row.total_s - (row.checkpoint_s or 0.0) - (row.launch_s or 0.0), 0.0)


def paid_back_s(row: ReallocationEntry) -> float | None:
    """Return after how many seconds at the new goodput the standstill had been made up for.

    What was lost is lost_s · before; each second since then gains after − before. None where the job made
    room for others, or its goodput did not rise or is not known.
    """
    lost, before, after = lost_s(row), row.goodput_before, row.goodput_after
    if row.target_gpus < row.source_gpus:
        return None
    if lost is None or before is None or after is None or after <= before:
        return None
    return lost * before / (after - before)


def parts_s(row: ReallocationEntry) -> tuple[float, ...]:
    """Return the parts of the standstill as `COST_PARTS` names them, none where it was not measured."""
    lost = lost_s(row)
    if lost is None:
        return ()
    if is_in_place(row):
        return (0.0, 0.0, 0.0, lost)
    return (row.checkpoint_s or 0.0, _queue_s(row) or 0.0, row.launch_s or 0.0, 0.0)


PLANNED = Column("planned_at", "planned (UTC)", Kind.MOMENT)
_RUNS = Column("runs", "runs", Kind.TEXT)
_COLUMNS = (
    Column("source_gpus", "GPUs before", Kind.COUNT),
    Column("target_gpus", "GPUs after", Kind.COUNT),
    Column("source_nodes", "nodes before", Kind.COUNT, shown=False),
    Column("target_nodes", "nodes after", Kind.COUNT, shown=False),
    WAY,
    Column("step", "end", Kind.TEXT),
    Column("checkpoint_s", "checkpoint", Kind.SECONDS),
    Column("queue_s", "stopped to started", Kind.SECONDS, value=_queue_s),
    Column("launch_s", "launch to step", Kind.SECONDS),
    Column("lost_s", "standstill", Kind.SECONDS, value=lost_s),
    Column("total_s", "standstill by requeue", Kind.SECONDS, shown=False),
    STANDSTILL_IN_PLACE,
    Column("warm_up_s", "new GPUs idle", Kind.SECONDS, shown=False),
    Column("goodput_before", "goodput before"),
    Column("goodput_after", "goodput after"),
    Column("paid_back_s", "paid back after", Kind.SECONDS, value=paid_back_s),
    REALLOCATION,
    replace(ROUND, shown=False),
    Column("cause", "cause", Kind.TEXT, shown=False),
    Column("reason", "reason", Kind.TEXT, is_sentence=True),
)


def moves_part(rows: Sequence[ReallocationEntry], events: Sequence[JobEvent] = ()) -> Part:
    """Return the part about one job's reallocations, rows of reallocation_history and of job_timeline."""
    starts = sorted((one.at, one.run) for one in events if one.event == "run" and one.run is not None)
    moves = sorted(rows, key=lambda row: row.planned_at)
    columns = move_columns(moves, PLANNED, replace(_RUNS, value=lambda row: _runs(row, starts)))
    data = table_of(
        "reallocations",
        moves,
        columns,
        note="Goodput in examples/s, means over the run before and the run after. Paid back after: how "
        "long it took at the new goodput to make up for the standstill; none where the job made room.",
        keep="last",
    )
    if not moves:
        return Part(title="Reallocations", text="The job has not been moved.", tables=(data,))
    plotted = moves[-_MOST_ROWS:]
    done = [move for move in moves if move.step == "confirmed"]
    summary = f"{plural(len(moves), 'reallocation')}, {len(done)} of them completed; {costs_text(done)}."
    if len(plotted) < len(moves):
        summary += f" The last {len(plotted)} are drawn."
    chart = MoveChart(
        title="What each reallocation cost and brought",
        text=f"{summary} {_best(done)}".strip(),
        rows=tuple(_drawn(move) for move in plotted),
    )
    return Part(
        title="Reallocations",
        text=summary,
        plots=(
            Plot(
                chart=chart,
                caption="Left: how long training stood still. Right: mean goodput of the run before and of "
                "the run after; a gain is green and goes to the right, a loss, where the job made room for "
                "others, is orange.",
            ),
        ),
        tables=(data,),
    )


def _runs(row: ReallocationEntry, starts: Sequence[tuple[datetime, int]]) -> str | None:
    """Return the run that a move found, and the first after it; a move in place stays in its run."""
    before = [run for at, run in starts if at <= row.planned_at]
    if not before:
        return None
    if row.way == "in_place" or row.step != "confirmed" or before[-1] == starts[-1][1]:
        return str(before[-1])
    return f"{before[-1]} → {starts[len(before)][1]}"


def costs_text(done: Sequence[ReallocationEntry]) -> str:
    """Return for how long training stood still, for each way of moves."""
    texts = []
    for way, in_place in (("by requeue", False), ("in place", True)):
        lost = [found for row in done if is_in_place(row) is in_place and (found := lost_s(row)) is not None]
        if lost:
            mean = f", {duration_text(sum(lost) / len(lost))} a move" if len(lost) > 1 else ""
            texts.append(f"{duration_text(sum(lost))} for {len(lost):,} {way}{mean}")
    return "training stood still: " + "; ".join(texts) if texts else "no standstill was measured"


def move_columns(rows: Sequence[ReallocationEntry], *first: Column) -> tuple[Column, ...]:
    """Return the columns of a table of reallocations, after those that it begins with."""
    # A sheet of paper is not wide enough for both, and the chart has the parts of a move by requeue.
    hidden = "launch_s" if any(map(is_in_place, rows)) else "way"
    return tuple(replace(one, shown=one.shown and one.key != hidden) for one in (*first, *_COLUMNS))


def _drawn(row: ReallocationEntry) -> MoveRow:
    size = f"{row.source_gpus} → {plural(row.target_gpus, 'GPU')}"
    note = _ENDS.get(str(row.step), "")
    if not row.moves_running:
        note = note or "while it waited"
    elif lost_s(row) is None:
        note = note or "not measured"
    if str(row.step) not in ("confirmed", *_ENDS):
        note = f"under way: {str(row.step).replace('_', ' ')}"
    return MoveRow(
        label=f"{row.planned_at:%d %b %H:%M:%S}  {size}",
        description=_description(row, size, note),
        cost_s=parts_s(row),
        note=note,
        before=row.goodput_before,
        after=row.goodput_after,
    )


def _description(row: ReallocationEntry, size: str, note: str) -> str:
    parts = [f"{row.planned_at:%Y-%m-%d %H:%M:%S} UTC, {size.replace('→', 'to')}"]
    if note:
        parts.append(note)
    if lost_s(row) is not None:
        how = "moved in place, stood" if is_in_place(row) else "stood"
        parts.append(f"{how} still for {duration_text(lost_s(row))}")
    before, after = row.goodput_before, row.goodput_after
    if before is not None and after is not None:
        parts.append(f"goodput {number_text(before)} before, {number_text(after)} after, in examples/s")
    return "; ".join(parts)


def _best(done: Sequence[ReallocationEntry]) -> str:
    changes = [(row.goodput_before, row.goodput_after) for row in done]
    known = [(before, after) for before, after in changes if before is not None and after is not None]
    if not known:
        return ""
    before, after = max(known, key=lambda change: abs(change[1] - change[0]))
    return (
        f"The largest change of goodput was from {number_text(before)} to {number_text(after)} examples "
        "per second."
    )
