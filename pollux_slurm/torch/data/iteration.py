"""One loop over a loader as a script holds it: a `for` loop has it alone, a variable may keep it longer."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any
from weakref import ref

from pollux_slurm.errors import UsageError

_COUNTED = (
    "training that counts its calls of next() on an iterator over an AdaptiveDataLoader: after a move the "
    "loop goes on in the middle of its epoch, with fewer batches left than the script counts. Write "
    "`for batch in loader:` (and `break`, for a part of an epoch), or expect the end: `next(iterator, None)`"
)


class Batches:
    """The batches of one loop. `make` is given a weak reference to this object, and makes their generator.

    As with any generator the loop is left when the last reference to this object goes. A session may end it
    before, where going on would silently mean something else. `has_stepped` tells whether an optimizer has
    stepped since the batch before: a script may look at batches with `next`, but not train by counting them.
    """

    __slots__ = ("__weakref__", "_generator", "_has_begun", "_has_stepped", "_is_safe", "_reason")

    def __init__(
        self, make: Callable[[ref[Batches]], Generator[Any, None, None]], has_stepped: Callable[[], bool]
    ) -> None:
        self._generator, self._has_stepped = make(ref(self)), has_stepped
        self._has_begun = self._is_safe = False
        self._reason: str | None = None

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        if self._reason is not None:
            raise UsageError(self._reason)
        if not self._is_safe:
            self._is_safe = not _is_blind_call(sys._getframe(1))
            if self._has_begun and not self._is_safe and self._has_stepped():
                raise UsageError(_COUNTED)
            self._has_begun = True
        return next(self._generator)

    def end(self, reason: str) -> None:
        """Leave the loop as `break` does; a script that asks for another batch is told the reason."""
        self._reason = reason
        self._generator.close()

    @property
    def is_ended(self) -> bool:
        """True once `end` was called."""
        return self._reason is not None


def _is_blind_call(frame: FrameType) -> bool:
    """Tell whether a frame stands at a call of `next` that gives no default, in code that names no
    StopIteration; False for `for` loops and all else that takes an iterator's end for what it is.
    """
    code, at = frame.f_code, frame.f_lasti
    if "StopIteration" in code.co_names or not {"next", "__next__"} & set(code.co_names):
        return False
    return "CALL" in dis.opname[code.co_code[at]] and code.co_code[at + 1] < 2
