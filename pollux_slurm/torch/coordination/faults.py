"""What a job's training does wrong and can go on with: told once, or the end of it under `strict`."""

from __future__ import annotations

import logging

from pollux_slurm.agent.measure.report_builder import ReportBuilder
from pollux_slurm.errors import TrainingError
from pollux_slurm.model import JobWarning

_LOG = logging.getLogger(__name__)


class Faults:
    """Tells of what is wrong: an error in the job's log and in the reports, an exception under `strict`.

    `report_builder` is there on rank 0 only, which speaks for all.
    """

    def __init__(self, *, strict: bool, rank: int, report_builder: ReportBuilder | None) -> None:
        self.strict = strict
        self._rank, self._telemetry = rank, report_builder
        self._told: set[JobWarning] = set()

    def tell(self, warning: JobWarning, message: str) -> None:
        """Tell what is wrong and how to cure it: once for each `warning`, by rank 0.

        Under `strict` it raises `TrainingError` on every rank that calls.
        """
        if self.strict:
            raise TrainingError(message)
        if warning in self._told:
            return
        self._told.add(warning)
        if self._rank == 0:
            _LOG.error(message)
        if self._telemetry is not None:
            self._telemetry.warn(warning)
