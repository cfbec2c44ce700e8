"""A store that a thread talks to over and over: what happens when it does not answer."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from pollux_slurm.errors import PolluxError, StoreUnavailable, UnknownJobError

_LOG = logging.getLogger(__name__)
_MAX_WARNINGS = 100
_LONGEST_PAUSE_S = 30.0


class Closable(Protocol):
    """Whatever can be closed."""

    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=Closable)
Found = TypeVar("Found")


class StoreConnection(Generic[Opened]):
    """Opens a store when it is first needed, and again after an error that is not an outage.

    Each error is logged once. `num_failures` counts the calls that have failed since one succeeded. For one
    thread. `answers` are errors by which the store tells something: they are no failures.

    >>> import io
    >>> connection = StoreConnection(lambda: io.StringIO("an answer"))
    >>> connection.call(lambda store: store.read()), connection.num_failures
    ('an answer', 0)
    """

    def __init__(
        self, open_store: Callable[[], Opened], *, answers: tuple[type[PolluxError], ...] = ()
    ) -> None:
        self._open_store, self._answers = open_store, answers
        self._store: Opened | None = None
        self._logged: set[str] = set()
        self.num_failures = 0

    def call(self, work: Callable[[Opened], Found]) -> Found:
        """Return what `work` makes of the store. What it raises is logged, counted, and raised."""
        try:
            if self._store is None:
                self._store = self._open_store()
            found = work(self._store)
        except self._answers:
            raise
        except PolluxError as error:
            self.num_failures += 1
            if not isinstance(error, UnknownJobError):  # not registered yet: the daemon does so soon
                self.warn(error)
            if not isinstance(error, StoreUnavailable | UnknownJobError):
                self.close()
            raise
        self.num_failures = 0
        return found

    def pause_s(self, interval_s: float) -> float:
        """Return how long to wait after a failure where calls follow every `interval_s`: longer each time."""
        return min(interval_s * 2.0 ** min(self.num_failures, 10), _LONGEST_PAUSE_S)

    def warn(self, error: PolluxError) -> None:
        """Log an error, unless the same one was logged. After 100 different ones, nothing more is logged."""
        text = f"{type(error).__name__}: {error}"
        if text not in self._logged and len(self._logged) < _MAX_WARNINGS:
            self._logged.add(text)
            _LOG.warning("store: %s", text)

    def close(self) -> None:
        """Close the store, if it is open. The next call opens it again."""
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(PolluxError):
                store.close()
