"""Decide whether a requested checkpoint waits for the end of the epoch.

At an epoch's end none of a script's own work is under way, such as sums over the epoch's batches or a
validation. So rank 0 answers a request there if it expects to reach the end in time. It measures, in this
run, the examples per second of each loop, and how long the epoch goes on after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class LoaderProgress(Protocol):
    """A loader's name, and the position and length of its loop in examples (length None: unknown)."""

    @property
    def name_across_epochs(self) -> str: ...

    @property
    def position_and_length(self) -> tuple[int, int | None]: ...


@dataclass(slots=True)
class _LoopHistory:
    """Earlier loops over one loader: `length` in examples, `rate` in examples per second.

    `tail_s` is how long the epoch went on after the loop that ended at `ended_at`.
    """

    length: int | None = None
    rate: float | None = None
    tail_s: float = 0.0
    ended_at: float | None = None


class EpochEndWait:
    """On rank 0: predicts the end of the epoch under way. A request waits for at most `wait_s`.

    No request waits outside of `remaining_epochs_until`, nor in a loop of unknown length. The length of an
    iterable dataset is known from its second epoch on.
    """

    def __init__(self, *, wait_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wait_s, self._monotonic = wait_s, monotonic
        self._loops: dict[str, _LoopHistory] = {}
        self._is_in_epoch = False
        self._loader: LoaderProgress | None = None
        self._last: _LoopHistory | None = None
        # Time and position after the loop's first step, which may take longer than others.
        self._mark: tuple[float, int] | None = None
        self._request: tuple[int, float] | None = None

    def begin_epoch(self) -> None:
        """Begin an epoch."""
        self._is_in_epoch, self._last = True, None

    def end_epoch(self) -> None:
        """End the epoch, also one that the script left: requests stop waiting for its end."""
        now = self._monotonic()
        for known in self._loops.values():
            if known.ended_at is not None:
                known.tail_s, known.ended_at = now - known.ended_at, None
        self._is_in_epoch, self._last = False, None

    def begin_loop(self, loader: LoaderProgress) -> None:
        """Begin an outermost loop."""
        self._loader, self._mark = loader, None

    def end_loop(self) -> None:
        """End the loop, also one that the script left."""
        if self._loader is None or not self._is_in_epoch:
            self._loader = None
            return
        known = self._loops.setdefault(self._loader.name_across_epochs, _LoopHistory())
        known.rate = self._rate() or known.rate
        known.length, known.ended_at = self._loader.position_and_length[0], self._monotonic()
        self._loader, self._last = None, known

    def note_boundary(self) -> None:
        """Note the loop's position at its first step boundary."""
        if self._mark is None and self._loader is not None:
            self._mark = self._monotonic(), self._loader.position_and_length[0]

    def should_wait(self, request: int) -> bool:
        """Return whether the answer to a request waits: for at most `wait_s` from the first call for it."""
        if not self._is_in_epoch:
            return False
        now = self._monotonic()
        if self._request is None or self._request[0] != request:
            self._request = request, now
        left_s = self._request[1] + self._wait_s - now
        remaining_s = self._remaining_s(now)
        return remaining_s is not None and left_s > 0 and remaining_s <= left_s

    def _remaining_s(self, now: float) -> float | None:
        """Return the expected time to the epoch's end, None where it is not known."""
        if self._loader is None:
            # Code after a loop counts as short until this run has measured it.
            last = self._last
            # Read once: `BackgroundResponder` calls this from a thread, and the epoch may end meanwhile.
            ended_at = None if last is None else last.ended_at
            return None if last is None or ended_at is None else ended_at + last.tail_s - now
        known = self._loops.get(self._loader.name_across_epochs, _LoopHistory())
        position, length = self._loader.position_and_length
        if length is None or (known.length is not None and position <= known.length):
            # A script may leave its loop before the end of the data.
            length = known.length
        rate = self._rate() or known.rate
        if length is None:
            return None
        # Without a rate yet, answer as if the loop's end were here; the rate is known after a step or two.
        return known.tail_s if rate is None else (length - position) / rate + known.tail_s

    def _rate(self) -> float | None:
        if self._mark is None or self._loader is None:
            return None
        took_s, done = self._monotonic() - self._mark[0], self._loader.position_and_length[0] - self._mark[1]
        return done / took_s if took_s > 0 and done > 0 else None
