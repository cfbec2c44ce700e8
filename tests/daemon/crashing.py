"""A daemon that dies at a chosen call, for tests that kill it at each call in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pollux_slurm.store.access.parts import StorePart

MUTATING = {
    "requeue_hold",
    "requeue_failed",
    "set_begin_time",
    "hold",
    "reshape",
    "release",
    "register",
    "observe",
    "record",
    "plan",
    "advance",
    "retarget",
    "record_refusal",
    "record_priority",
    "record_priority_ended",
    "set_priority",
    "create_reservation",
    "delete_reservation",
}


class Killed(BaseException):
    """The daemon's process is gone at this instant."""


class KilledAt:
    """Passes calls on, and dies just before the `at`-th call that changes anything."""

    def __init__(self, target: Any, counter: Iterator[int], at: int) -> None:
        self._target, self._counter, self._at = target, counter, at

    def guarded(self, guard: Callable[[], None]) -> KilledAt:
        return KilledAt(self._target.guarded(guard), self._counter, self._at)

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] | StorePart = getattr(self._target, name)
        if isinstance(method, StorePart):
            return KilledAt(method, self._counter, self._at)
        if name not in MUTATING:
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            if next(self._counter) == self._at:
                raise Killed
            return method(*args, **kwargs)

        return call
