"""The output of `pollux simulate` on a terminal: a table of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pollux_slurm import text as texts

if TYPE_CHECKING:
    from rich.console import Console


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


def print_rows(rows: Sequence[Mapping[str, Any]], axes: Mapping[str, str]) -> None:
    """Print the rows of an experiment's table, with a column for each of `axes`, which vary.

    Columns that are empty in all rows are omitted.
    """
    from pollux_slurm.simulator.experiments.kept_runs import axis_text

    seeds = any(row["num_runs"] > 1 for row in rows)
    scaled = len({row["autoscale"] for row in rows if row.get("autoscale")}) > 0
    regroups = any(row["regroups_per_job"] for row in rows)
    bounds = any(row["bound_avg_jct_s"] is not None for row in rows)
    asked = any(row["num_asked"] for row in rows)

    def column(title: str, rank: int, text: Callable[[Mapping[str, Any]], str]) -> Column:
        return Column(title=title, cells=tuple(text(row) for row in rows), rank=rank)

    def number(title: str, rank: int, key: str, form: str) -> Column:
        return column(title, rank, lambda row: "–" if row[key] is None else form.format(row[key]))

    print_table(
        [
            *(
                Column(title=title, cells=tuple(axis_text(row.get(name)) for row in rows), left=True)
                for name, title in axes.items()
            ),
            Column(title="policy", cells=tuple(row["policy"] for row in rows), left=True),
            *([column("runs", 4, lambda row: str(row["num_runs"]))] if seeds else []),
            number("average", 0, "avg_jct_s", "{:,.0f}"),
            number("ratio", 0, "ratio", "{:.3f}"),
            *([number("bound", 0, "bound_avg_jct_s", "{:,.0f}")] if bounds else []),
            *([column("to bound", 0, _to_bound)] if bounds else []),
            *([number("lowest", 5, "lowest_avg_jct_s", "{:,.0f}")] if seeds else []),
            *([number("highest", 5, "highest_avg_jct_s", "{:,.0f}")] if seeds else []),
            number("median", 5, "p50_jct_s", "{:,.0f}"),
            number("p90", 6, "p90_jct_s", "{:,.0f}"),
            number("p99", 3, "p99_jct_s", "{:,.0f}"),
            number("makespan", 1, "makespan_s", "{:,.0f}"),
            number("GPU h", 4, "gpu_hours", "{:,.0f}"),
            *([number("node h", 1, "node_hours", "{:,.0f}")] if scaled else []),
            number("restarts", 1, "restarts_per_job", "{:.2f}"),
            *([number("regroups", 1, "regroups_per_job", "{:.2f}")] if regroups else []),
            column("lost", 2, lambda row: f"{100 * row['restart_share']:.1f} %"),
            number("worst ρ", 2, "rho_worst", "{:.2f}"),
            column("ρ > 1", 4, lambda row: _percent(row["rho_share_above_1"])),
            *(
                [column("promised", 1, lambda row: f"{row['num_accepted']:g} of {row['num_asked']:g}")]
                if asked
                else []
            ),
            *([number("kept", 1, "num_kept", "{:g}")] if asked else []),
            column("solve", 7, lambda row: f"{1000 * row['solve_p95_s']:.1f}"),
        ],
        "Simulated. Completion times and makespan in seconds; ratio: average over that of the first policy "
        "on the same workload; "
        + ("lowest, highest: of the runs' averages; " if seeds else "")
        + ("bound: no policy's average is below it; " if bounds else "")
        + "restarts per job"
        + ("; regroups: moves in place per job" if regroups else "")
        + "; lost: share of GPU time without progress at starts, moves and failures; "
        "ρ: completion time over that on an equal share alone; "
        + ("promised: moments (finish_by), and how many of these were kept; " if asked else "")
        + "solve: 95th percentile, ms.",
    )


def _to_bound(row: Mapping[str, Any]) -> str:
    """Return how far the bound is from the average."""
    if row["bound_avg_jct_s"] is None:
        return "–"
    return f"{100 * (row['bound_avg_jct_s'] / row['avg_jct_s'] - 1):+.1f} %".replace("-", "−")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


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
