"""GPU hours by account or user and day, and what was made of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import date

from pollux_slurm.document.charts.scales import linear_axis
from pollux_slurm.document.charts.stacked_bars import StackedBars, day_stacks
from pollux_slurm.document.charts.time_axes import Range, days_axis
from pollux_slurm.document.columns import Column, Data, Kind, table_of
from pollux_slurm.document.document import Part, Plot
from pollux_slurm.report.parts.columns import ACCOUNT, DAY, EFFICIENCY, GPU_HOURS, NUM_JOBS, USER
from pollux_slurm.report.parts.common import share
from pollux_slurm.report.parts.groups import MOST_GROUPS, NAMELESS
from pollux_slurm.store.reporting.view_rows import AccountUsage, UserUsage
from pollux_slurm.text import number_text, plural

UsageRow = AccountUsage | UserUsage

_USAGE = (
    NUM_JOBS,
    GPU_HOURS,
    Column("trained_gpu_hours", "GPU hours with progress"),
    Column("useful_gpu_hours", "useful GPU hours"),
    Column("goodput", "mean goodput (examples/s)"),
    Column("progress_share", "made progress", Kind.SHARE),
    EFFICIENCY,
)
USAGE_NOTE = (
    "GPU hours with progress: during which reports showed training, rather than starts, moves or "
    "nothing. Useful: these hours weighted with their statistical efficiency, so that hours of different "
    "groups can be compared. Mean goodput is of one job while it trained."
)


def usage_part(rows: Sequence[UsageRow], range_: Range, *, by: str, title: str) -> Part:
    """Return GPU hours by day and by `by`: account (rows of account_usage) or user_name (of user_usage)."""
    who = {one.key: one for one in (ACCOUNT, USER)}[by]
    columns = (DAY, who, *_USAGE)
    daily = table_of(f"{who.title}_usage", rows, columns, note=USAGE_NOTE)
    if not rows:
        return Part(title=title, text="No adaptive job held GPUs in this time.", tables=(daily,))
    totals = _totals(rows, by)
    chart = _usage_chart(rows, totals, range_, by=by, title=f"GPU hours by {who.title} and day")
    shares = ", ".join(
        f"{name or NAMELESS} {100 * gpu_hours / max(sum(one[1] for one in totals), 1e-12):.0f} %"
        for name, gpu_hours, _, _ in totals[:3]
    )
    return Part(
        title=title,
        plots=(
            Plot(
                chart=chart,
                caption=f"GPU hours that adaptive jobs held, by whole days in UTC. Most of them: {shares}.",
                data=daily,
            ),
        ),
        tables=(_totals_table(totals, range_, who),),
    )


def by_gpu_hours(rows: Sequence[UsageRow], by: str) -> list[str]:
    """Return the groups in the order in which their usage is drawn: the most GPU hours first."""
    return [name for name, _, _, _ in _totals(rows, by)]


def _totals(rows: Sequence[UsageRow], by: str) -> list[tuple[str, float, float, float]]:
    """Return name, GPU hours, those that made progress, and those after efficiency; the largest first."""
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in rows:
        for place, key in enumerate(("gpu_hours", "trained_gpu_hours", "useful_gpu_hours")):
            sums[getattr(row, by)][place] += getattr(row, key) or 0.0
    found = [(name, held, trained, useful) for name, (held, trained, useful) in sums.items()]
    return sorted(found, key=lambda one: (-one[1], one[0]))


def _totals_table(totals: Sequence[tuple[str, float, float, float]], range_: Range, who: Column) -> Data:
    whole = sum(gpu_hours for _, gpu_hours, _, _ in totals)
    return Data(
        key=f"{who.title}s",
        title=f"By {who.title}, {range_.days_text()}",
        columns=(
            who,
            GPU_HOURS,
            Column("share", "share of all", Kind.SHARE),
            Column("trained_gpu_hours", "with progress"),
            Column("progress_share", "progress share", Kind.SHARE),
            Column("useful_gpu_hours", "useful"),
            Column("useful_share", "useful share", Kind.SHARE),
        ),
        rows=tuple(
            (name, held, share(held, whole), trained, share(trained, held), useful, share(useful, held))
            for name, held, trained, useful in totals
        ),
        note="With progress: while reports showed training. Useful: these hours weighted with their "
        "efficiency: what a group got for the GPU hours that it owned.",
    )


def _usage_chart(
    rows: Sequence[UsageRow],
    totals: Sequence[tuple[str, float, float, float]],
    range_: Range,
    *,
    by: str,
    title: str,
) -> StackedBars:
    names = [name for name, _, _, _ in totals]
    own = names if len(names) <= MOST_GROUPS + 1 else names[:MOST_GROUPS]
    labels = [name or NAMELESS for name in own]
    if len(own) < len(names):
        labels.append(f"{len(names) - len(own)} others")
    place = {name: index for index, name in enumerate(own)}
    days: defaultdict[date, list[float]] = defaultdict(lambda: [0.0] * len(labels))
    for row in rows:
        days[row.day][place.get(getattr(row, by), len(labels) - 1)] += row.gpu_hours or 0.0
    stacks = day_stacks(days)
    busiest = max(stacks, key=lambda stack: sum(stack.parts))
    return StackedBars(
        title=title,
        text=f"{number_text(sum(map(sum, days.values())))} GPU hours on {plural(len(days), 'day')}; "
        f"the most, {number_text(sum(busiest.parts))}, on {busiest.name}.",
        x=days_axis(days, range_),
        y=linear_axis("GPU hours per day", map(sum, days.values())),
        labels=tuple(labels),
        stacks=stacks,
        value_text=lambda value: f"{number_text(value)} GPU hours",
    )
