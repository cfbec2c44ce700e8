"""How many step boundaries share one exchange between the ranks.

An exchange costs each rank a third of a millisecond of its processor (two ranks, gloo): with one after each
step, steps of 3.6 ms take 4.2 on a busy machine. So short steps share one. All ranks count boundaries
alike, and rank 0 sends the number to share with each exchange, so that they stay together.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# The time between two exchanges at most. An agreement takes up to two, and SIGTERM must not wait for longer.
_MAX_INTERVAL_S = 0.25
_MAX_BOUNDARIES = 16
# The first boundaries each have an exchange, so that measurements and a change of the batch come early.
_FIRST = 50


class ExchangeInterval:
    """Decides at which boundaries there is an exchange."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.begin_run()

    def begin_run(self) -> None:
        """Begin anew: all replicas of a run count its boundaries alike."""
        self._agreed, self._num_boundaries, self._num_since = 1, 0, 0
        self._last_s: float | None = None

    def is_due(self) -> bool:
        """Count a boundary; return whether it has an exchange."""
        self._num_boundaries += 1
        self._num_since += 1
        return self._num_since >= self._agreed

    def record_exchange(self) -> int:
        """Record an exchange; return how many boundaries should share the next ones."""
        now = self._monotonic()
        num_since, self._num_since = self._num_since, 0
        last_s, self._last_s = self._last_s, now
        if last_s is None or self._num_boundaries <= _FIRST or not now > last_s:
            return 1
        return max(min(int(_MAX_INTERVAL_S * num_since / (now - last_s)), _MAX_BOUNDARIES), 1)

    def set_interval(self, number: int) -> None:
        """Use rank 0's number, which all ranks receive at the same boundary."""
        self._agreed = max(number, 1)
