"""When slurmctld was last configured anew: what it refused before, it may start now."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from pollux_slurm.model import SlurmAnswer
from pollux_slurm.store.contract.interface import JobRecord


class ConfigurationWatch:
    """Compares Slurm's configuration from round to round, while some refusal depends on it."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self._known: str | None = None
        self._changed_at: datetime | None = None

    def changed_at(self, records: Iterable[JobRecord], now: datetime) -> datetime | None:
        """Return when it last changed, None where that was not seen; reads it only where that matters."""
        if not any(one.answer is SlurmAnswer.NEVER for record in records for one in record.refusals):
            self._known = None
            return self._changed_at
        found = self._read()
        if self._known not in (None, found):
            self._changed_at = now
        self._known = found
        return self._changed_at
