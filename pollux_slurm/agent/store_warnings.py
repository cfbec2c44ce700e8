"""Warnings about a store that does not answer or refuses, each in the job's log once."""

from __future__ import annotations

import logging

from pollux_slurm.errors import PolluxError

_LOG = logging.getLogger(__name__)
_MAX_WARNINGS = 100


class StoreWarnings:
    """Logs each error once. Memory is bounded: what comes after 100 different ones is not logged."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log(self, error: PolluxError) -> None:
        """Log an error, unless the same one was logged."""
        text = f"{type(error).__name__}: {error}"
        if text not in self._logged and len(self._logged) < _MAX_WARNINGS:
            self._logged.add(text)
            _LOG.warning("store: %s", text)
