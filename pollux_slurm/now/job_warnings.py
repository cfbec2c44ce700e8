"""Warnings for a job's owner: those that its runs reported, and that it does not report at all."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pollux_slurm.text import ago_text

if TYPE_CHECKING:
    from pollux_slurm.store.contract.interface import JobRecord

# Time from a start to the first report: imports on a slow file system, the claim, the first connection.
_FIRST_REPORT = timedelta(minutes=5)
_CAUSES = (
    "either it never calls pollux_slurm.torch.init_process_group, or no store is set where it runs "
    "(POLLUX_STORE_URL), or that store does not answer; see the lines of its log that begin with 'pollux: '"
)


def missing_reports(record: JobRecord, now: datetime) -> str | None:
    """Return a sentence for a job that ran for minutes and has never reported; None for others."""
    if record.run is not None or record.started_at is None:
        return None
    if record.finished_at is not None:
        return f"it ended without any report: {_CAUSES}"
    if not record.allocation or now - record.started_at < _FIRST_REPORT:
        return None
    return f"it started {ago_text(record.started_at, now)} and has not reported: {_CAUSES}"


def warnings_as_dicts(record: JobRecord) -> list[dict[str, Any]]:
    """Return a job's warnings as plain containers, each with its meaning and its cure."""
    return [
        {
            "warning": one.warning.value,
            "run": one.run_number + 1,
            "first_seen_at": one.first_seen_at.isoformat(),
            "meaning": one.warning.sentence,
            "cure": one.warning.cure,
        }
        for one in record.warnings
    ]


def warning_lines(records: tuple[JobRecord, ...], now: datetime) -> list[str]:
    """Return a line for each warning of the jobs."""
    found = []
    for record in records:
        job = record.slurm_job_id
        sentences = [f"{one.warning.sentence} (cure: pollux explain {job})" for one in record.warnings]
        silent = missing_reports(record, now)
        sentences += [] if silent is None else [silent]
        found += [f"! job {job}: {sentence}" for sentence in sentences]
    return found
