"""Correct estimated run times with Slurm's accounting database.

slurmctld forgets a run's times. slurmdbd is asked only while the store has estimates. A site without slurmdbd
keeps its estimates, which are marked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from pollux_slurm.errors import SlurmError
from pollux_slurm.model import AccountedRun
from pollux_slurm.store.contract.interface import Store

_log = logging.getLogger(__name__)

PastRuns = Callable[[Sequence[str], datetime], tuple[AccountedRun, ...] | None]
"""Returns all runs of jobs since a moment, None where there is no slurmdbd; raises `SlurmError`."""

# What slurmdbd does not have within a day of a job's end, it never will.
_ASKED_FOR = timedelta(days=1)
_MOST_JOBS = 200
# The least time between two queries of slurmdbd: rounds may come every few seconds.
CORRECTED_EVERY = timedelta(seconds=20)


def no_past_runs(_job_ids: Sequence[str], _since: datetime) -> None:
    """Return None: there is no slurmdbd."""
    return


def correct_estimates(store: Store, past_runs: PastRuns, *, now: datetime) -> None:
    """Replace estimated times of jobs with those in Slurm's accounting database."""
    estimated = store.jobs.estimated(since=now - _ASKED_FOR)[:_MOST_JOBS]
    if not estimated:
        return
    since = min(submitted_at for _, submitted_at in estimated)
    try:
        runs = past_runs([job_id for job_id, _ in estimated], since)
    except SlurmError as error:
        _log.info("estimated runs cannot be looked up in Slurm's accounting for now: %s", error)
        return
    for job_id in store.jobs.correct_estimated(runs) if runs else ():
        _log.info("job %s: its estimated runs are corrected from Slurm's accounting", job_id)
