"""What a round asks of Slurm's accounting database: runs whose times slurmctld does not tell any more.

Nothing is asked as long as nothing is estimated. A site without slurmdbd keeps its estimates, marked as such.
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

# What slurmdbd has not told within a day of a job's end, it does not know.
_ASKED_FOR = timedelta(days=1)
_MOST_JOBS = 200
# slurmdbd is asked no oftener: rounds may come every few seconds, and what it does not know stays estimated.
SETTLED_EVERY = timedelta(seconds=20)


def no_past_runs(_job_ids: Sequence[str], _since: datetime) -> None:
    """Know nothing: there is no slurmdbd."""
    return


def settle(store: Store, past_runs: PastRuns, *, now: datetime) -> None:
    """Correct what is estimated of jobs by what Slurm's accounting database has of their runs."""
    doubtful = store.estimated_jobs(since=now - _ASKED_FOR)[:_MOST_JOBS]
    if not doubtful:
        return
    since = min(submitted_at for _, submitted_at in doubtful)
    try:
        runs = past_runs([job_id for job_id, _ in doubtful], since)
    except SlurmError as error:
        _log.info("runs that are estimated cannot be looked up in Slurm's accounting for now: %s", error)
        return
    for job_id in store.correct_estimated_jobs(runs) if runs else ():
        _log.info("job %s: its runs are entered as Slurm's accounting has them", job_id)
