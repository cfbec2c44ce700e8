"""A progress bar of long commands."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


class ProgressBar:
    """A progress bar on stderr, if that is a terminal."""

    def __init__(self, total: float, what: str) -> None:
        self._total, self._what = total, what
        self._bar: RichProgress | None = None

    def __enter__(self) -> ProgressBar:
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
                # Standard output may be a file: what is printed there stays there.
                redirect_stdout=False,
            )
            self._bar.add_task(self._what, total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, num_done: float) -> None:
        """Show that `num_done` of the total are done."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=num_done)
