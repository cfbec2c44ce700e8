"""GPU hours by account or user and day, and what was made of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date

from pollux_slurm.document.charts.scales import linear_axis
from pollux_slurm.document.charts.stacked_bars import Stack, StackedBars
from pollux_slurm.document.charts.time_axes import Range, day_ends, day_text, days_axis, midnight
from pollux_slurm.document.columns import Column, Data, Kind
from pollux_slurm.document.document import Part, Plot
from pollux_slurm.report.parts.columns import GPU_HOURS
from pollux_slurm.report.parts.common import share
from pollux_slurm.report.parts.groups import MOST_GROUPS, NAMELESS
from pollux_slurm.store.reporting.view_rows import AccountUsage, UserUsage
from pollux_slurm.text import number_text, plural

UsageRow = AccountUsage | UserUsage

_USAGE_KINDS = {
    "day": Kind.DAY,
    "account": Kind.TEXT,
    "user_name": Kind.TEXT,
    "num_jobs": Kind.COUNT,
    "progress_share": Kind.SHARE,
    "efficiency": Kind.SHARE,
}
_USAGE_TITLES = {
    "day": "day (UTC)",
    "account": "account",
    "user_name": "user",
    "num_jobs": "jobs",
    "gpu_hours": "GPU hours",
    "trained_gpu_hours": "GPU hours with progress",
    "useful_gpu_hours": "useful GPU hours",
    "progress_share": "made progress",
    "efficiency": "efficiency",
    "goodput": "mean goodput (examples/s)",
}
USAGE_NOTE = (
    "GPU hours with progress: during which reports showed training, rather than starts, moves or "
    "nothing. Useful: these hours weighted with their statistical efficiency, so that hours of different "
    "groups can be compared. Mean goodput is of one job while it trained."
)


def usage_part(rows: Sequence[UsageRow], range_: Range, *, by: str, title: str) -> Part:
    """Return GPU hours by day and by `by`: account (rows of account_usage) or user_name (of user_usage)."""
    who = _USAGE_TITLES[by]
    keys = tuple(key for key in _USAGE_TITLES if key in ("day", by) or key not in _USAGE_KINDS)
    keys = (
        "day",
        by,
        "num_jobs",
        *(key for key in keys if key not in ("day", by)),
        "progress_share",
        "efficiency",
    )
    daily = Data(
        key=f"{by.removesuffix('_name')}_usage",
        title="",
        columns=_usage_columns(keys),
        rows=tuple(tuple(getattr(row, key) for key in keys) for row in rows),
        note=USAGE_NOTE,
    )
    if not rows:
        return Part(title=title, text="No adaptive job held GPUs in this time.", tables=(daily,))
    totals = _totals(rows, by)
    chart = _usage_chart(rows, totals, range_, by=by, title=f"GPU hours by {who} and day")
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
        tables=(_totals_table(totals, range_, by),),
    )


def by_gpu_hours(rows: Sequence[UsageRow], by: str) -> list[str]:
    """Return the groups in the order in which their usage is drawn: the most GPU hours first."""
    return [name for name, _, _, _ in _totals(rows, by)]


def _usage_columns(keys: Iterable[str]) -> tuple[Column, ...]:
    return tuple(
        Column(key=key, title=_USAGE_TITLES[key], kind=_USAGE_KINDS.get(key, Kind.NUMBER)) for key in keys
    )


def _totals(rows: Sequence[UsageRow], by: str) -> list[tuple[str, float, float, float]]:
    """Return name, GPU hours, those that made progress, and those after efficiency; the largest first."""
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in rows:
        for place, key in enumerate(("gpu_hours", "trained_gpu_hours", "useful_gpu_hours")):
            sums[getattr(row, by)][place] += getattr(row, key) or 0.0
    found = [(name, held, trained, useful) for name, (held, trained, useful) in sums.items()]
    return sorted(found, key=lambda one: (-one[1], one[0]))


def _totals_table(totals: Sequence[tuple[str, float, float, float]], range_: Range, by: str) -> Data:
    whole = sum(gpu_hours for _, gpu_hours, _, _ in totals)
    return Data(
        key=f"{by.removesuffix('_name')}s",
        title=f"By {_USAGE_TITLES[by]}, {range_.days_text()}",
        columns=(
            Column(key=by, title=_USAGE_TITLES[by], kind=Kind.TEXT),
            GPU_HOURS,
            Column(key="share", title="share of all", kind=Kind.SHARE),
            Column(key="trained_gpu_hours", title="with progress"),
            Column(key="progress_share", title="progress share", kind=Kind.SHARE),
            Column(key="useful_gpu_hours", title="useful"),
            Column(key="useful_share", title="useful share", kind=Kind.SHARE),
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
    stacks = [
        Stack(name=f"{day_text(midnight(day))} {day.year}", low=low, high=high, parts=tuple(values))
        for day, values in sorted(days.items())
        for low, high in [day_ends(day)]
    ]
    sums = [sum(values) for values in days.values()]
    busiest = max(stacks, key=lambda stack: sum(stack.parts))
    return StackedBars(
        title=title,
        text=f"{number_text(sum(sums))} GPU hours on {plural(len(days), 'day')}; the most, "
        f"{number_text(sum(busiest.parts))}, on {busiest.name}.",
        x=days_axis(days, range_),
        y=linear_axis("GPU hours per day", sums),
        labels=tuple(labels),
        stacks=tuple(stacks),
        value_text=lambda value: f"{number_text(value)} GPU hours",
    )
