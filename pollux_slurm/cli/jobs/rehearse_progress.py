"""The progress of `pollux rehearse` on stderr: a line for each run."""

from __future__ import annotations

import sys
import time

from pollux_slurm.rehearsal.rehearse import RunObserver, UpcomingRun
from pollux_slurm.rehearsal.run_failures import place_of, where_of
from pollux_slurm.rehearsal.runs.script_run import Event, ScriptRun

_EVERY_S = 0.2


class ProgressLines(RunObserver):
    """Prints a line for each run; on a terminal it also shows the current epoch and sample."""

    def __init__(self) -> None:
        self._line, self._shown_at = "", 0.0
        self._is_terminal = sys.stderr.isatty()

    def begins(self, run: UpcomingRun) -> None:
        if run.regroups:
            what = "processes join and leave in place"
        elif run.reverses:
            what = "the first run again, with each batch in the reverse order"
        elif run.stop is None:
            what = "first run, without a move"
        elif run.before is None:
            what = f"from the beginning, to be moved {place_of(run.stop)}"
        else:
            what = f"after the move {where_of(run.before)}"
        batch = ", varying batch" if run.varies_batch else ""
        noun = "process" if run.num_processes == 1 else "processes"
        self._line = f"pollux: {run.num_processes} {noun}, {what}{batch}: "
        self._show("starting")

    def event(self, event: Event) -> None:
        if event["kind"] == "micro_batch" and time.monotonic() - self._shown_at >= _EVERY_S:
            self._shown_at = time.monotonic()
            self._show(f"epoch {event['epoch']}, sample {event['start']}")

    def ended(self, played: ScriptRun) -> None:
        text = f"{played.outcome.value} after {played.wall_s:.1f} s"
        sys.stderr.write(f"\r{self._line}{text}\x1b[K\n" if self._is_terminal else f"{self._line}{text}\n")
        sys.stderr.flush()

    def _show(self, text: str) -> None:
        if self._is_terminal:
            sys.stderr.write(f"\r{self._line}{text}\x1b[K")
            sys.stderr.flush()
