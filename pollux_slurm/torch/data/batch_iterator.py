"""The iterator of a loop over an `AdaptiveDataLoader`, also where the script keeps it in a variable."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any
from weakref import ref

from pollux_slurm.errors import UsageError

_COUNTED_CALLS = (
    "training that counts its calls of next() on an iterator over an AdaptiveDataLoader: after a move the "
    "loop goes on in the middle of its epoch, with fewer batches left than the script counts. Write "
    "`for batch in loader:` (and `break`, for a part of an epoch), or expect the end: "
    "`next(iterator, None)`; "
    "without epochs, count by `for step, batches in remaining_steps_until(num_steps, loader):`"
)


class BatchIterator:
    """The batches of one loop. `make` gets a weak reference to this object and returns their generator.

    As with any generator, the loop is left when the last reference to this object goes. A session may end it
    earlier, where its positions have become invalid. `has_stepped` returns whether an optimizer has stepped
    since the previous batch: a script may look at batches with `next`, but not train by counting them.
    """

    __slots__ = ("__weakref__", "_generator", "_has_begun", "_has_stepped", "_is_safe", "_reason")

    def __init__(
        self,
        make: Callable[[ref[BatchIterator]], Generator[Any, None, None]],
        has_stepped: Callable[[], bool],
    ) -> None:
        self._generator, self._has_stepped = make(ref(self)), has_stepped
        self._has_begun = self._is_safe = False
        self._reason: str | None = None

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        if self._reason is not None:
            raise UsageError(self._reason)
        if not self._is_safe:
            self._is_safe = not _is_next_without_default(sys._getframe(1))
            if self._has_begun and not self._is_safe and self._has_stepped():
                raise UsageError(_COUNTED_CALLS)
            self._has_begun = True
        return next(self._generator)

    def end(self, reason: str) -> None:
        """Leave the loop as `break` does. A script that asks for another batch gets a `UsageError`."""
        self._reason = reason
        self._generator.close()

    @property
    def is_ended(self) -> bool:
        """True once `end` was called."""
        return self._reason is not None


def _is_next_without_default(frame: FrameType) -> bool:
    """Return whether a frame calls `next` without a default, in code that does not name StopIteration.

    False for `for` loops and everything else that handles an iterator's end.
    """
    code, at = frame.f_code, frame.f_lasti
    if "StopIteration" in code.co_names or not {"next", "__next__"} & set(code.co_names):
        return False
    return "CALL" in dis.opname[code.co_code[at]] and code.co_code[at + 1] < 2
