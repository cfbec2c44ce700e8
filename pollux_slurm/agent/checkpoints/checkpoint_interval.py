"""How often to write a checkpoint: the interval that loses least time, or the one that the user set.

Legend: δ seconds that training stands still for one checkpoint, Θ mean time between failures of the job.
"""

from __future__ import annotations

import math

# The first checkpoint is written early, to measure its cost.
_FIRST_INTERVAL_S = 60.0
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 30.0, 3600.0
# Checkpoints occupy the disk for at most this share of the time.
_MAX_WRITE_SHARE = 0.1
_SMOOTHING = 0.5


def optimal_interval_s(cost_s: float, mtbf_s: float) -> float:
    """Return the seconds between checkpoints that lose least time (Daly 2006, eq. 37; Young 1974 its root).

    √(2δΘ)·(1 + ⅓√(δ/2Θ) + ⅑·δ/2Θ) − δ for δ < 2Θ, else Θ.
    """
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


class CheckpointInterval:
    """The interval between periodic checkpoints, updated by what each one cost.

    `mtbf_s` is the mean time between failures of the whole job. `fixed_s` is an interval set by the user,
    None for the optimal one.
    """

    def __init__(self, *, mtbf_s: float, fixed_s: float | None = None) -> None:
        self._mtbf_s, self._fixed_s = mtbf_s, fixed_s
        self._blocked_s: float | None = None
        self._write_s = 0.0

    def add_blocked_time(self, seconds: float) -> None:
        """Record how long training stood still for a checkpoint."""
        before = self._blocked_s
        self._blocked_s = seconds if before is None else before + _SMOOTHING * (seconds - before)

    def add_write_time(self, seconds: float) -> None:
        """Record how long it took to write a checkpoint to disk."""
        self._write_s = seconds

    @property
    def interval_s(self) -> float:
        """The seconds from one checkpoint to the next."""
        if self._fixed_s is not None:
            return self._fixed_s
        if self._blocked_s is None:
            return _FIRST_INTERVAL_S
        optimal_s = optimal_interval_s(max(self._blocked_s, 0.0), self._mtbf_s)
        shortest_s = max(_MIN_INTERVAL_S, self._write_s / _MAX_WRITE_SHARE)
        return min(max(optimal_s, shortest_s), max(_MAX_INTERVAL_S, self._write_s))
