"""How often a training was started, and how much of its time limit it has used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pollux_slurm.launch.anchor.order import Starts
from pollux_slurm.slurm.sbatch.request import sigterm_lead_s

# How much earlier than asked Slurm may send SIGTERM before a time limit.
_SIGTERM_EARLY_S = 60.0


class TrainingTime:
    """The starts and the time of a training, over all runs of its anchor: `file` outlives them.

    Only the time counts in which processes run. `limit_s` is None without a limit.
    """

    def __init__(self, file: Path, *, limit_s: float | None, monotonic: Callable[[], float]) -> None:
        self._file, self._limit_s, self._monotonic = file, limit_s, monotonic
        self._starts = Starts.read(file)
        # Since when the processes of the present start run.
        self._since_s: float | None = None

    @property
    def num_starts(self) -> int:
        return self._starts.count

    def count_start(self) -> None:
        """Count one more start."""
        self._write(replace(self._starts, count=self._starts.count + 1))

    def begin(self) -> None:
        """The processes of this start run from now on."""
        self._since_s = self._monotonic()

    def end(self) -> None:
        """They have ended, if they ever began."""
        if self._since_s is not None:
            trained_s = self._starts.trained_s + self._monotonic() - self._since_s
            self.forget_start()
            self._write(replace(self._starts, trained_s=trained_s))

    def forget_start(self) -> None:
        """Leave the time of this start to another run of the anchor, which counts it already."""
        self._since_s = None

    def rest_s(self) -> float | None:
        """Return how much of its time the training has left; None without a limit."""
        if self._limit_s is None:
            return None
        now_s = 0.0 if self._since_s is None else self._monotonic() - self._since_s
        return self._limit_s - self._starts.trained_s - now_s

    def is_used_up(self) -> bool:
        """Whether another start would be stopped as soon as it trains. The first one is always made."""
        rest_s = self.rest_s()
        if rest_s is None or not self._starts.trained_s:
            return False
        return rest_s <= sigterm_lead_s(self._limit_s) + _SIGTERM_EARLY_S

    def _write(self, starts: Starts) -> None:
        self._starts = starts
        starts.write(self._file)
