"""What `pollux simulate` shows on a terminal: how far it is, and a comparison."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    from pollux_slurm.simulator.summary import Summary


class Progress:
    """A bar on standard error while simulations run; nothing where that is not a terminal."""

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what = total, what
        self._bar: RichProgress | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.add_task(f"{self._total} {self._what}", total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, num_done: float) -> None:
        """Show that so much of the total is done."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=num_done)


def print_comparison(summaries: Sequence[Summary], labels: Sequence[str], *, node_hours: bool) -> None:
    """Print a row for each run; `ratio` compares its average with the first run of the same workload.

    `node_hours`, for how long nodes were paid for, are shown on request.
    """
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    table.add_column("workload", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    for title in (
        *("average", "ratio", "median", "p90", "p99", "makespan", "GPU h", "restarts", "lost"),
        *("worst ρ", "ρ > 1", "solve", *(["node h"] if node_hours else [])),
    ):
        table.add_column(title, justify="right", no_wrap=True)
    first: dict[str, float] = {}
    for found, label in zip(summaries, labels, strict=True):
        against = first.setdefault(found.workload, found.avg_jct_s)
        table.add_row(
            found.workload,
            label,
            f"{found.avg_jct_s:,.0f}",
            f"{found.avg_jct_s / against:.3f}",
            *(f"{value:,.0f}" for value in (found.p50_jct_s, found.p90_jct_s, found.p99_jct_s)),
            f"{found.makespan_s:,.0f}",
            f"{found.gpu_hours:,.0f}",
            f"{found.restarts_per_job:.2f}",
            f"{100 * found.restart_share:.1f} %",
            "-" if found.rho_worst is None else f"{found.rho_worst:.2f}",
            "-" if found.rho_share_above_1 is None else f"{100 * found.rho_share_above_1:.0f} %",
            f"{1000 * found.solve_s['p95']:.1f}",
            *([f"{sum(found.node_hours.values()):,.0f}"] if node_hours else []),
        )
    console = wide_console()
    console.print(table)
    console.print(
        "Simulated. Completion times and makespan in seconds; ratio: average over that of the first policy; "
        "restarts a job; lost: share of GPU time without progress after moves and failures; ρ: completion "
        "time over that alone on an equal share; solve: 95th percentile, ms.",
        style="dim",
    )


def wide_console() -> Console:
    """Return a console for standard output that does not wrap where there is no terminal to fit into."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 200
    return console
