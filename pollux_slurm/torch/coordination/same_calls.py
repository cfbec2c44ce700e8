"""Find replicas that do not make the same calls, before they wait for each other for ever.

Where a replica leaves a loop or the epochs by `break`, or evaluates the wrapped model (which communicates),
all others must do the same. So there each leaves a key in the store through which the ranks have met, and
waits for those of the others. A rank that does not come is waited for in a collective of its own: it makes
no progress, and its thread writes where it is. If that is further on than it could be, the training ends
by an error that names the place, instead of gloo's.

    key of a meeting   <prefix>/<place>/<stages>/<steps>/<rank>
    key of a rank      <prefix>/at/<rank>: the stages that it has begun, and the steps of the last one
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pollux_slurm.errors import TrainingError

_TICK_S, _POLL_S, _FIRST_POLL_S = 1.0, 0.2, 0.002

_OWN_DECISION = (
    "rank {rank} has left {what} by its own decision, and rank {other} goes on with it: decide by a value "
    "that all replicas have, such as a sum in an Accumulator, not by a replica's own share of the data"
)
_ALONE = (
    "rank {rank} evaluates the wrapped model, which communicates, and rank {other} does not, but trains on: "
    "call it on all replicas, or the model inside on this one: model.module(...)"
)


class SameCalls:
    """This replica's place in the training, and its meetings. `store` is None where nobody is to be met.

    `is_stopped` ends a wait: the processes were asked to stop.
    """

    def __init__(
        self, store: Any, *, prefix: str, rank: int, world_size: int, is_stopped: Callable[[], bool]
    ) -> None:
        self._store, self._prefix, self._rank = store, prefix, rank
        self._others = [other for other in range(world_size) if other != rank]
        self._is_stopped = is_stopped
        self._at, self._met = (0, 0), set[tuple[str, int, int]]()
        self._closed = threading.Event()
        if store is not None:
            threading.Thread(target=self._watch, name="pollux-same-calls", daemon=True).start()

    def begin_stage(self) -> None:
        """Begin an outermost loop, or the end of an epoch."""
        self._at = (self._at[0] + 1, 0)
        self._met.clear()

    def begin_step(self) -> None:
        """Begin a step of a loop, which takes a global batch."""
        self._at = (self._at[0], self._at[1] + 1)

    def leave(self, what: str) -> None:
        """Leave the loop, or the epochs, by `break`. Raises `TrainingError` where another goes on."""
        self._meet("left", _OWN_DECISION.format(rank=self._rank, what=what, other="{other}"))

    def evaluate(self) -> None:
        """Call the wrapped model for an evaluation. Raises `TrainingError` where another trains on."""
        self._meet("evaluates", _ALONE.format(rank=self._rank, other="{other}"))

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _meet(self, place: str, message: str) -> None:
        meeting = (place, *self._at)
        if self._store is None or meeting in self._met:
            return
        self._met.add(meeting)
        key = "/".join(map(str, (self._prefix, *meeting)))
        self._store.set(f"{key}/{self._rank}", b"1")
        pause_s = _FIRST_POLL_S
        for other in self._others:
            while not self._store.check([f"{key}/{other}"]):
                at = self._place_of(other)
                # It may have come meanwhile, and gone on.
                if at is not None and at > self._at and not self._store.check([f"{key}/{other}"]):
                    raise TrainingError(message.format(other=other))
                if self._closed.wait(pause_s) or self._is_stopped():
                    return
                pause_s = min(2 * pause_s, _POLL_S)

    def _place_of(self, other: int) -> tuple[int, int] | None:
        key = f"{self._prefix}/at/{other}"
        if not self._store.check([key]):
            return None
        stages, steps = map(int, self._store.get(key).split())
        return stages, steps

    def _watch(self) -> None:
        """Write this replica's place when it has made no progress for a while."""
        seen = written = self._at
        while not self._closed.wait(_TICK_S):
            at = self._at
            if at == seen and at != written:
                try:
                    self._store.set(f"{self._prefix}/at/{self._rank}", f"{at[0]} {at[1]}")
                except RuntimeError:  # the rank that has the store is gone
                    return
                written = at
            seen = at
