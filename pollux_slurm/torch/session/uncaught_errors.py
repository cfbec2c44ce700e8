"""Errors that end a script: looked at on their way through `sys.excepthook`, and passed on as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any


class Uncaught:
    """Calls `before` and `after` with an error that nobody catches, around who shows it."""

    def __init__(
        self, *, before: Callable[[BaseException], None], after: Callable[[BaseException], None]
    ) -> None:
        self._before, self._after = before, after
        self._shown_by: Callable[..., Any] | None = None

    def install(self) -> None:
        """Look at what passes `sys.excepthook`, and pass it on."""
        if self._shown_by is None:
            self._shown_by, sys.excepthook = sys.excepthook, self._hook

    def remove(self) -> None:
        """Give the hook back, unless somebody else has put another in its place."""
        if self._shown_by is not None and sys.excepthook == self._hook:
            sys.excepthook, self._shown_by = self._shown_by, None

    def _hook(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        self._before(error)
        if self._shown_by is not None:
            self._shown_by(kind, error, traceback)
        self._after(error)
