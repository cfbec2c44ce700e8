"""How long a job has had GPUs, over all its runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pollux_slurm.model import SlurmJob
from pollux_slurm.store.contract.interface import AllocationRecord


def used_s(job: SlurmJob, history: Iterable[AllocationRecord], now: datetime) -> float:
    """Return the wall time of all runs of a job, in seconds, from its allocation intervals."""
    intervals = tuple(history)
    total_s = sum(_seconds(one.started_at, one.ended_at or now) for one in intervals if one.allocation)
    if job.started_at is not None and all(one.ended_at is not None for one in intervals):
        total_s += _seconds(job.started_at, now)  # this run has no interval yet
    return total_s


def _seconds(begin: datetime, end: datetime) -> float:
    return max((end - begin).total_seconds(), 0.0)
