"""How far long commands are: a line that is updated on a terminal, seldom lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from pollux_slurm.cli.shared.settings_and_store import print_note

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

# Seconds between two lines where stderr is not a terminal.
LINE_EVERY_S = 300.0


class ProgressBar:
    """A progress bar on stderr, or a line every five minutes where that is not a terminal."""

    def __init__(self, total: float, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._what, self._clock = total, what, clock
        self._bar: RichProgress | None = None
        self._last_line_s = clock()

    def __enter__(self) -> ProgressBar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress
            from rich.table import Column

            # The text is cut where the terminal is narrow: one line is updated.
            cut = Column(no_wrap=True, overflow="ellipsis")
            self._bar = RichProgress(
                TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
                BarColumn(bar_width=20),
                TextColumn("{task.percentage:>3.0f} %", table_column=Column(no_wrap=True)),
                TimeRemainingColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[text]}", markup=False, table_column=cut),
                console=Console(stderr=True),
                transient=True,
                # Standard output may be a file: what is printed there stays there.
                redirect_stdout=False,
            )
            self._bar.add_task(self._what, total=self._total, text="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, num_done: float, text: str = "") -> None:
        """Show that `num_done` of the total are done; `text` says more."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=num_done, text=text)
        elif self._clock() - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = self._clock()
            done = f"{100 * num_done / self._total:.0f} %" if self._total else ""
            line = ", ".join(part for part in (f"pollux: {self._what}: {done}", text) if part)
            print_note(line)
