"""How many step boundaries share one exchange between the ranks.

An exchange costs each rank a third of a millisecond of its processor (two ranks, gloo). Where steps are
short, several of them share one: all ranks count boundaries alike, and take up the number that rank 0's clock
calls for from what they exchange, so that they stay together.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# What is agreed upon takes up to two exchanges: checkpoints and SIGTERM must not wait for longer than this.
_MOST_S = 0.25
_MOST_BOUNDARIES = 16
# Boundaries at first that each have their own: measurements and an early change of the batch are wanted soon.
_FIRST = 50


class Spacing:
    """Says at which boundaries there is an exchange."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._agreed, self._num_boundaries, self._num_since = 1, 0, 0
        self._last_s: float | None = None

    def is_due(self) -> bool:
        """Count a boundary; tell whether its ranks exchange."""
        self._num_boundaries += 1
        self._num_since += 1
        return self._num_since >= self._agreed

    def exchanged(self) -> int:
        """Tell that the ranks exchange now; return how many boundaries should share the next ones."""
        now = self._monotonic()
        num_since, self._num_since = self._num_since, 0
        last_s, self._last_s = self._last_s, now
        if last_s is None or self._num_boundaries <= _FIRST or not now > last_s:
            return 1
        return max(min(int(_MOST_S * num_since / (now - last_s)), _MOST_BOUNDARIES), 1)

    def agree(self, number: int) -> None:
        """Take up rank 0's number, which all ranks learn at the same boundary."""
        self._agreed = max(number, 1)
