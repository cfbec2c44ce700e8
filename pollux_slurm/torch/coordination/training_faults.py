"""Faults of a job's training that it can go on with: each is reported once, or raised under `strict`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pollux_slurm.agent.measure.report_builder import ReportBuilder
from pollux_slurm.errors import TrainingError
from pollux_slurm.model import JobWarning

_LOG = logging.getLogger(__name__)


class TrainingFaults:
    """Reports faults: in the job's log and to the store, or as an exception under `strict`.

    `report_builder` is None except on rank 0, which reports for all. `on_log` gets each text for `log`.
    """

    def __init__(
        self,
        *,
        strict: bool,
        rank: int,
        report_builder: ReportBuilder | None,
        on_log: Callable[[str], None] | None = None,
    ) -> None:
        self.strict, self._on_log = strict, on_log
        self._told: set[JobWarning] = set()
        self._logged: set[str] = set()
        self.begin_run(rank=rank, report_builder=report_builder)

    def begin_run(self, *, rank: int, report_builder: ReportBuilder | None) -> None:
        """Report to another run's report builder, first what was told already."""
        self._rank, self._report_builder = rank, report_builder
        if report_builder is not None:
            for warning in self._told:
                report_builder.warn(warning)

    def report(self, warning: JobWarning, message: str) -> None:
        """Report a fault and its cure, once for each kind (`warning`), on rank 0.

        Under `strict` it raises `TrainingError` on every rank that calls it.
        """
        if self.strict:
            raise TrainingError(message)
        if warning in self._told:
            return
        self._told.add(warning)
        if self._rank == 0:
            _LOG.error(message)
        if self._report_builder is not None:
            self._report_builder.warn(warning)

    def log(self, message: str) -> None:
        """Say once in the log, on rank 0, what another shape of the job changes. No replica is at fault."""
        if self._on_log is not None:
            self._on_log(message)
        if self._rank == 0 and message not in self._logged:
            self._logged.add(message)
            _LOG.warning(message)
