"""Find replicas that do not make the same calls, before they wait for each other for ever.

Where a replica leaves a loop or the epochs by `break`, evaluates the wrapped model (which communicates), goes
over an adaptive loader without training, or adds up sums, all others must do the same. So there each leaves
a key in the store through which the ranks have met, and waits for those of the others. A rank that does not
come is waited for in a collective of its own: it makes no progress, and its thread writes where it is. If
that is further on than it could be, the training ends by an error that names the place, instead of gloo's. A
rank that waits at the same place, in a collective of the script's own, cannot be told from a slow one: after
a minute a line names it.

Places are counted in what all replicas do together, epochs and steps: a replica may look at a batch alone.

    key of a meeting   <prefix>/<call>/<epochs>/<steps>/<rank>
    key of a rank      <prefix>/at/<rank>: the epochs whose end it has begun, and the steps
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from pollux_slurm.errors import TrainingError

_LOG = logging.getLogger(__name__)
_TICK_S, _POLL_S, _FIRST_POLL_S = 1.0, 0.2, 0.002
_LONG_S = 60.0
_END = 1 << 62

_OWN_DECISION = (
    "rank {rank} has left {what} by its own decision, and rank {other} goes on with it: decide by a value "
    "that all replicas have, such as a sum in an Accumulator, not by a replica's own share of the data"
)
_ALONE = (
    "rank {rank} evaluates the wrapped model, which communicates, and rank {other} does not, but goes on: "
    "call it on all replicas, or the model inside on this one: model.module(...)"
)
_SHARE_ALONE = (
    "rank {rank} goes over {what}, which gives each replica its share, and rank {other} does not, but goes "
    "on: go over it on all replicas, or on this one over an ordinary DataLoader, with model.module(...)"
)
_SUM_ALONE = (
    "rank {rank} adds up the sums of {what} over the replicas, and rank {other} does not, but goes on: enter "
    "synchronized() on all replicas"
)
_WAITS = (
    "rank %s has waited a minute for rank %s, which %s: if it is not to come, call the wrapped model on all "
    "replicas, or model.module(...) on this one, and leave loops by a value that all replicas have"
)


class SameCalls:
    """This replica's place in the training, and its meetings.

    `progress` returns the finished epochs and the steps so far, which are the same on all replicas.
    `is_stopped` ends a wait: the processes were asked to stop.
    """

    def __init__(self, *, progress: Callable[[], tuple[int, int]], is_stopped: Callable[[], bool]) -> None:
        self._progress, self._is_stopped = progress, is_stopped
        self._store: Any = None
        self._prefix, self._rank, self._others = "", 0, list[int]()
        # How far this replica has gone alone: the place of a step, or of an epoch's end, that it has begun.
        self._begun = (0, 0)
        self._met: set[tuple[str, int, int]] = set()
        self._keys: deque[str] = deque()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def meet_through(self, store: Any, *, prefix: str, rank: int, world_size: int) -> None:
        """Meet these replicas from now on, through `store`; None where nobody is to be met."""
        self._store, self._prefix, self._rank = store, prefix, rank
        self._others = [other for other in range(world_size) if other != rank]
        self._met.clear()
        self._keys.clear()
        if store is not None and self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="pollux-same-calls", daemon=True)
            self._thread.start()

    def begin_step(self) -> None:
        """Begin a forward pass of a step, or go on in it."""
        epochs, steps = self._progress()
        self._begun = (epochs, steps + 1)

    def begin_epoch_end(self) -> None:
        """Begin the end of an epoch, for which all replicas wait."""
        epochs, steps = self._progress()
        self._begun = (epochs + 1, steps)

    def leave(self, what: str) -> None:
        """Leave the loop, or the epochs, by `break`. Raises `TrainingError` where another goes on."""
        self._meet("left", _OWN_DECISION, what)

    def evaluate(self) -> None:
        """Call the wrapped model for an evaluation. Raises `TrainingError` where another trains on."""
        self._meet("evaluates", _ALONE)

    def go_over(self, what: str) -> None:
        """Go over an adaptive loader without training. Raises `TrainingError` where another trains on."""
        self._meet(f"goes over {what}", _SHARE_ALONE, what)

    def add_up(self, what: str) -> None:
        """Add up sums over the replicas. Raises `TrainingError` where another trains on."""
        self._meet(f"adds up {what}", _SUM_ALONE, what)

    def close(self) -> None:
        """End the thread, and tell the others that this replica comes nowhere any more."""
        self._closed.set()
        self._write((_END, 0))
        self._store = None

    def _meet(self, call: str, message: str, what: str = "") -> None:
        meeting = (call, *self._progress())
        if self._store is None or meeting in self._met:
            return
        if not any(met[1:] == meeting[1:] for met in self._met):
            self._met.clear()
        self._met.add(meeting)
        key = "/".join(map(str, (self._prefix, *meeting)))
        if len(self._keys) == 2:
            # All others have left the meeting before the last, for they came to the last.
            self._store.delete_key(self._keys.popleft())
        self._store.set(f"{key}/{self._rank}", b"1")
        self._keys.append(f"{key}/{self._rank}")
        for other in self._others:
            self._wait_for(other, key, message, what)

    def _wait_for(self, other: int, key: str, message: str, what: str) -> None:
        pause_s, waited_s, is_told = _FIRST_POLL_S, 0.0, False
        while not self._store.check([f"{key}/{other}"]):
            at = self._place_of(other)
            # It may have come meanwhile, and gone on.
            if at is not None and at > self._at and not self._store.check([f"{key}/{other}"]):
                raise TrainingError(message.format(rank=self._rank, other=other, what=what))
            if self._closed.wait(pause_s) or self._is_stopped():
                return
            waited_s += pause_s
            if waited_s > _LONG_S and not is_told:
                is_told = True
                _LOG.warning(_WAITS, self._rank, other, "has not come" if at is None else "makes no progress")
            pause_s = min(2 * pause_s, _POLL_S)

    @property
    def _at(self) -> tuple[int, int]:
        return max(self._begun, self._progress())

    def _place_of(self, other: int) -> tuple[int, int] | None:
        key = f"{self._prefix}/at/{other}"
        if not self._store.check([key]):
            return None
        epochs, steps = map(int, self._store.get(key).split())
        return epochs, steps

    def _write(self, at: tuple[int, int]) -> None:
        if self._store is not None:
            with contextlib.suppress(RuntimeError):  # the rank that has the store is gone
                self._store.set(f"{self._prefix}/at/{self._rank}", f"{at[0]} {at[1]}")

    def _watch(self) -> None:
        """Write this replica's place when it has made no progress for a while."""
        seen = written = (self._prefix, self._at)
        while not self._closed.wait(_TICK_S):
            at = (self._prefix, self._at)
            if at == seen and at != written:
                self._write(at[1])
                written = at
            seen = at
