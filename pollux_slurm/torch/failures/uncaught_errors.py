"""Observe errors that end a script, through `sys.excepthook`, without changing how they are shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any


class UncaughtErrors:
    """Calls `before` and `after` with an uncaught error, around the hook that prints it.

    Where `before` returns False, another error is the cause, and neither it nor `after` follows.
    """

    def __init__(
        self, *, before: Callable[[BaseException], bool], after: Callable[[BaseException], None]
    ) -> None:
        self._before, self._after = before, after
        self._shown_by: Callable[..., Any] | None = None

    def install(self) -> None:
        """Wrap `sys.excepthook`."""
        if self._shown_by is None:
            self._shown_by, sys.excepthook = sys.excepthook, self._hook

    def remove(self) -> None:
        """Restore the previous hook, unless somebody else has replaced ours."""
        if self._shown_by is not None and sys.excepthook == self._hook:
            sys.excepthook, self._shown_by = self._shown_by, None

    def _hook(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not self._before(error):
            return
        if self._shown_by is not None:
            self._shown_by(kind, error, traceback)
        self._after(error)
