"""The output of `pollux simulate` on a terminal: a table of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pollux_slurm import text as texts

if TYPE_CHECKING:
    from rich.console import Console

    from pollux_slurm.simulator.results.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table. In a narrow terminal, columns with the highest `rank` are omitted first."""

    title: str
    cells: tuple[str, ...]
    rank: int = 0
    left: bool = False

    @property
    def width(self) -> int:
        return max(len(cell) for cell in (self.title, *self.cells)) + 2


def print_comparison(summaries: Sequence[Summary], labels: Sequence[str], *, node_hours: bool) -> None:
    """Print a row for each run. `ratio` is its average over that of the first run of the same workload.

    With `node_hours`, a column has the hours that nodes were up. Where jobs were moved in place, a column has
    these regroups; where jobs have a moment, two have the promises made and kept.
    """
    first: dict[str, float] = {}
    for one in summaries:
        first.setdefault(one.workload, one.avg_jct_s)

    regroups = any(one.regroups_per_job for one in summaries)
    bounds = all(one.bound_avg_jct_s is not None for one in summaries)
    asked = any(one.num_asked for one in summaries)

    def column(title: str, rank: int, text: Callable[[Summary], str]) -> Column:
        return Column(title=title, cells=tuple(text(one) for one in summaries), rank=rank)

    columns = [
        Column(
            title="workload",
            cells=tuple(one.workload for one in summaries),
            rank=8 if len(first) == 1 else 0,
            left=True,
        ),
        Column(title="policy", cells=tuple(labels), left=True),
        column("average", 0, lambda one: f"{one.avg_jct_s:,.0f}"),
        column("ratio", 0, lambda one: f"{one.avg_jct_s / first[one.workload]:.3f}"),
        *([column("bound", 0, lambda one: f"{one.bound_avg_jct_s or 0:,.0f}")] if bounds else []),
        *([column("to bound", 0, _to_bound)] if bounds else []),
        column("median", 5, lambda one: f"{one.p50_jct_s:,.0f}"),
        column("p90", 6, lambda one: f"{one.p90_jct_s:,.0f}"),
        column("p99", 3, lambda one: f"{one.p99_jct_s:,.0f}"),
        column("makespan", 1, lambda one: f"{one.makespan_s:,.0f}"),
        column("GPU h", 4, lambda one: f"{one.gpu_hours:,.0f}"),
        *([column("node h", 1, lambda one: f"{sum(one.node_hours.values()):,.0f}")] if node_hours else []),
        column("restarts", 1, lambda one: f"{one.restarts_per_job:.2f}"),
        *([column("regroups", 1, lambda one: f"{one.regroups_per_job:.2f}")] if regroups else []),
        column("lost", 2, lambda one: f"{100 * one.restart_share:.1f} %"),
        column("worst ρ", 2, lambda one: number_or_dash(one.rho_worst)),
        column(
            "ρ > 1",
            4,
            lambda one: "–" if one.rho_share_above_1 is None else f"{100 * one.rho_share_above_1:.0f} %",
        ),
        *([column("promised", 1, lambda one: f"{one.num_accepted} of {one.num_asked}")] if asked else []),
        *([column("kept", 1, lambda one: f"{one.num_kept}")] if asked else []),
        column("solve", 7, lambda one: f"{1000 * one.solve_s['p95']:.1f}"),
    ]
    print_table(
        columns,
        "Simulated. Completion times and makespan in seconds; ratio: average over that of the first policy; "
        + ("bound: no policy's average is below it; " if bounds else "")
        + "restarts per job"
        + ("; regroups: moves in place per job" if regroups else "")
        + "; lost: share of GPU time without progress at starts, moves and failures; "
        "ρ: completion time over that on an equal share alone; "
        + ("promised: moments (finish_by), and how many of these were kept; " if asked else "")
        + "solve: 95th percentile, ms.",
    )


def _to_bound(summary: Summary) -> str:
    """Return how far the bound is from the average."""
    return f"{100 * ((summary.bound_avg_jct_s or 0) / summary.avg_jct_s - 1):+.1f} %".replace("-", "−")


def number_or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def print_table(columns: Sequence[Column], note: str, console: Console | None = None) -> None:
    """Print the columns that fit into the terminal, and a note; all columns if stdout is not a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console() if console is None else console
    if not console.is_terminal:
        console.width = 200
    shown = list(columns)
    while console.is_terminal and sum(column.width for column in shown) > console.width:
        last = max(shown, key=lambda column: column.rank)
        if last.rank == 0:
            break
        shown.remove(last)
    table = Table(box=None, header_style="bold")
    for column in shown:
        table.add_column(column.title, justify="left" if column.left else "right", no_wrap=True)
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*(Text(texts.shown(cell)) for cell in cells))
    console.print(table)
    missing = [column.title for column in columns if column not in shown]
    if missing:
        note += f" No room for: {', '.join(missing)}."
    console.print(note, style="dim")
