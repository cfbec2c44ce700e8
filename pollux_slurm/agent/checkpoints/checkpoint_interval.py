"""How often to write a checkpoint: from what one costs and how often a node fails, or as the user said.

Legend: δ seconds that training stands still for one checkpoint, Θ mean time between failures of the job.
"""

from __future__ import annotations

import math

# Before the cost is known, one is written early to measure it.
_FIRST_S = 60.0
_LEAST_S, _MOST_S = 30.0, 3600.0
# The disk is busy with checkpoints at most this share of the time.
_MOST_WRITING = 0.1
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
    """Says when the next periodic checkpoint is due. `fixed_s` is the user's own interval, None for the best.

    `mtbf_s` is the mean time between failures of the whole job.
    """

    def __init__(self, *, mtbf_s: float, fixed_s: float | None = None) -> None:
        self._mtbf_s, self._fixed_s = mtbf_s, fixed_s
        self._blocked_s: float | None = None
        self._written_s = 0.0

    def add_blocked_time(self, seconds: float) -> None:
        """Tell how long training stood still for one."""
        before = self._blocked_s
        self._blocked_s = seconds if before is None else before + _SMOOTHING * (seconds - before)

    def add_write_time(self, seconds: float) -> None:
        """Tell how long it took to bring one to the disk."""
        self._written_s = seconds

    @property
    def interval_s(self) -> float:
        """The seconds from one checkpoint to the next."""
        if self._fixed_s is not None:
            return self._fixed_s
        if self._blocked_s is None:
            return _FIRST_S
        best = optimal_interval_s(max(self._blocked_s, 0.0), self._mtbf_s)
        return min(max(best, _LEAST_S, self._written_s / _MOST_WRITING), max(_MOST_S, self._written_s))
