"""What a job's training does wrong and can go on with: told once, or the end of it under `strict`."""

from __future__ import annotations

import logging

from pollux_slurm.agent.telemetry import Telemetry
from pollux_slurm.errors import TrainingError

_LOG = logging.getLogger(__name__)


class Faults:
    """Tells of what is wrong: an error in the job's log and in the reports, an exception under `strict`.

    `telemetry` is there on rank 0 only, which speaks for all.
    """

    def __init__(self, *, strict: bool, rank: int, telemetry: Telemetry | None) -> None:
        self.strict = strict
        self._rank, self._telemetry = rank, telemetry
        self._told: set[str] = set()

    def tell(self, kind: str, message: str) -> None:
        """Tell of a fault of `kind`, with its cure: once for each kind, by rank 0.

        Under `strict` it raises `TrainingError` on every rank that calls.
        """
        if self.strict:
            raise TrainingError(message)
        if kind in self._told:
            return
        self._told.add(kind)
        if self._rank == 0:
            _LOG.error(message)
