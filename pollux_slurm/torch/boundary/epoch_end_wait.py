"""Whether a checkpoint that is asked for waits for the end of the epoch, where that is near.

At an epoch's end nothing of a script's own is under way: sums over the epoch's batches, or a validation. So
rank 0 answers a request there if it expects to reach it in time. It measures, in this run, how fast each
loop goes through its examples and how long the epoch goes on after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Loopable(Protocol):
    """What is asked of a loader: a name, and where its loop stands of how many examples (None: unknown)."""

    @property
    def memory_name(self) -> str: ...

    @property
    def standing(self) -> tuple[int, int | None]: ...


@dataclass(slots=True)
class _Known:
    """What loops over one loader were like. `length` and `rate` are examples (a second)."""

    length: int | None = None
    rate: float | None = None
    tail_s: float = 0.0
    ended_at: float | None = None


class EpochEnd:
    """On rank 0: what is known of the epoch under way. A request waits for at most `wait_s`.

    Nothing waits outside of `remaining_epochs_until`, nor in a loop whose length is not known: a stream's is
    from its second epoch on.
    """

    def __init__(self, *, wait_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wait_s, self._monotonic = wait_s, monotonic
        self._known: dict[str, _Known] = {}
        self._is_in_epoch = False
        self._loader: Loopable | None = None
        self._last: _Known | None = None
        # Time and position after the loop's first step: that may take longer than others.
        self._mark: tuple[float, int] | None = None
        self._request: tuple[int, float] | None = None

    def begin_epoch(self) -> None:
        """An epoch begins."""
        self._is_in_epoch, self._last = True, None

    def end_epoch(self) -> None:
        """It has ended, or was left: whoever waits for that waits no longer."""
        now = self._monotonic()
        for known in self._known.values():
            if known.ended_at is not None:
                known.tail_s, known.ended_at = now - known.ended_at, None
        self._is_in_epoch, self._last = False, None

    def begin_loop(self, loader: Loopable) -> None:
        """An outermost loop begins."""
        self._loader, self._mark = loader, None

    def end_loop(self) -> None:
        """It has ended, or was left."""
        if self._loader is None or not self._is_in_epoch:
            self._loader = None
            return
        known = self._known.setdefault(self._loader.memory_name, _Known())
        known.rate = self._rate() or known.rate
        known.length, known.ended_at = self._loader.standing[0], self._monotonic()
        self._loader, self._last = None, known

    def passed(self) -> None:
        """The ranks are between two steps of the loop."""
        if self._mark is None and self._loader is not None:
            self._mark = self._monotonic(), self._loader.standing[0]

    def is_awaited(self, request: int) -> bool:
        """Tell whether the answer to a request is to wait: for at most so long from the first call for it."""
        if not self._is_in_epoch:
            return False
        now = self._monotonic()
        if self._request is None or self._request[0] != request:
            self._request = request, now
        left_s = self._request[1] + self._wait_s - now
        remaining_s = self._remaining_s(now)
        return remaining_s is not None and left_s > 0 and remaining_s <= left_s

    def _remaining_s(self, now: float) -> float | None:
        """Return the time to the epoch's end as far as it can be told, None where it cannot."""
        if self._loader is None:
            # Code after a loop is taken to be short where this run has not seen how long it takes.
            last = self._last
            # Read once: `Standby` asks from a thread of its own, and the epoch may end meanwhile.
            ended_at = None if last is None else last.ended_at
            return None if last is None or ended_at is None else ended_at + last.tail_s - now
        known = self._known.get(self._loader.memory_name, _Known())
        position, length = self._loader.standing
        if length is None or (known.length is not None and position <= known.length):
            # A script may leave its loop before the end of the data.
            length = known.length
        rate = self._rate() or known.rate
        if length is None:
            return None
        # A step or two will tell the pace.
        return known.tail_s if rate is None else (length - position) / rate + known.tail_s

    def _rate(self) -> float | None:
        if self._mark is None or self._loader is None:
            return None
        took_s, done = self._monotonic() - self._mark[0], self._loader.standing[0] - self._mark[1]
        return done / took_s if took_s > 0 and done > 0 else None
