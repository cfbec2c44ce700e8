"""One loop over a loader as a script holds it: a `for` loop has it alone, a variable may keep it longer."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any
from weakref import ref

from pollux_slurm.errors import UsageError


class Batches:
    """The batches of one loop. `make` is given a weak reference to this object, and makes their generator.

    As with any generator the loop is left when the last reference to this object goes. A session may end it
    before, where going on would silently mean something else.
    """

    __slots__ = ("__weakref__", "_generator", "_reason")

    def __init__(self, make: Callable[[ref[Batches]], Generator[Any, None, None]]) -> None:
        self._generator = make(ref(self))
        self._reason: str | None = None

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        if self._reason is not None:
            raise UsageError(self._reason)
        return next(self._generator)

    def end(self, reason: str) -> None:
        """Leave the loop as `break` does; a script that asks for another batch is told the reason."""
        self._reason = reason
        self._generator.close()

    @property
    def is_ended(self) -> bool:
        """True once `end` was called."""
        return self._reason is not None
