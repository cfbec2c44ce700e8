"""Time limits: what all runs of a job together may take, and jobs whose owners let them go on in slices.

Slurm counts a time limit anew from each start. What earlier runs used is therefore taken off it at each move
(`time_left_s`). A job whose terms say so (`pollux sbatch --time=SLICE --total-time=TOTAL`) is stopped with a
checkpoint before its slice ends and requeued with another one, until all its runs together have used TOTAL:
a *renewal*, a reallocation to where it is. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pollux_slurm.config import DaemonConfig
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, is_recorded_job
from pollux_slurm.model import JobState, JobTerms, ReallocationCause, SlurmJob
from pollux_slurm.slurm.parsing.comment_terms import decode_comment
from pollux_slurm.slurm.sbatch.request import sigterm_lead_s
from pollux_slurm.store.contract.interface import AllocationRecord, JobRecord, Reallocation

# A job that is moved is never left less than this, or it could not even write a checkpoint.
_LEAST_LEFT_S = 60.0
# How much earlier than asked Slurm may send a signal before a time limit (sbatch's manual).
_EARLY_S = 60.0
RENEWAL = "near its time limit, which its owner lets be renewed"
"""What the journal says to people of a renewal."""


def time_left_s(job: SlurmJob, now: datetime) -> float | None:
    """Return what a job that runs, or has ended, has left of its time limit; None for one without."""
    if job.time_limit_s is None or job.started_at is None:
        return None
    used_s = max(((job.ended_at or now) - job.started_at).total_seconds(), 0.0)
    return max(job.time_limit_s - used_s, min(_LEAST_LEFT_S, job.time_limit_s))


def used_s(history: Iterable[AllocationRecord], now: datetime) -> float:
    """Return the wall time of all runs together, in seconds, from a job's stretches of allocation."""
    return sum(
        max(((held.ended_at or now) - held.started_at).total_seconds(), 0.0)
        for held in history
        if held.allocation
    )


def next_slice_s(
    job: SlurmJob, record: JobRecord, history: Iterable[AllocationRecord], now: datetime
) -> float | None:
    """Return the time limit of the run after this one, in seconds; None when the owner gives it no more.

    Nor is a job requeued for less than a minute more than its present run still has: the last slice, which
    is what the total leaves, is not given again and again.

    Whoever may set any limit must not do so at an owner's word: no run gets more than Slurm itself had
    granted when the job was registered, or, where that is not known, than it has now.
    """
    terms = _terms(job)
    if terms is None or terms.slice_s is None or terms.total_s is None:
        return None
    granted_s = job.time_limit_s if record.granted_time_limit_s is None else record.granted_time_limit_s
    stretches = tuple(history)
    spent_s = used_s(stretches, now)
    if job.started_at is not None and all(held.ended_at is not None for held in stretches):
        spent_s += max((now - job.started_at).total_seconds(), 0.0)  # no look has entered this run yet
    left_s = min(float(terms.slice_s), terms.total_s - spent_s)
    left_s = left_s if granted_s is None else min(left_s, granted_s)
    of_this_run_s = 0.0
    if job.time_limit_s is not None and job.started_at is not None:
        of_this_run_s = max(job.time_limit_s - (now - job.started_at).total_seconds(), 0.0)
    return left_s if left_s >= of_this_run_s + _LEAST_LEFT_S else None


def is_renewal(reallocation: Reallocation) -> bool:
    """Whether a reallocation gives the job another slice of time, and the place that it has."""
    return reallocation.cause is ReallocationCause.TIME_LIMIT


def is_ending(job: ManagedJob, now: datetime, config: DaemonConfig) -> bool:
    """Whether the job's slice is about to end and its owner wants it to go on, so that it is time to save it.

    In time for a checkpoint that takes as long as it may and a round that comes late; of a short slice, in
    its last third. But before Slurm itself sends SIGTERM, after which the job would end: that comes up to a
    minute earlier than `pollux sbatch` asks for. A run is never taken to end in its first half, so that one
    whose limit is far below its owner's slice is not renewed over and over.
    """
    slurm = job.slurm
    terms = _terms(slurm)
    if terms is None or terms.total_s is None or terms.slice_s is None:
        return False
    if slurm.state is not JobState.RUNNING or job.in_flight or not job.has_reported_this_run:
        return False
    if slurm.time_limit_s is None or slurm.started_at is None or slurm.unschedulable_reason is not None:
        return False
    if not is_recorded_job(slurm, job.record):
        return False
    granted_s = job.record.granted_time_limit_s
    run_s = float(terms.slice_s) if granted_s is None else min(terms.slice_s, granted_s)
    saving_s = min(config.checkpoint_timeout_s + 2 * config.interval_s, run_s / 3)
    warned_s = sigterm_lead_s(terms.slice_s) + _EARLY_S + 2 * config.interval_s
    margin_s = max(saving_s, min(warned_s, run_s / 2))
    return slurm.time_limit_s - (now - slurm.started_at).total_seconds() <= margin_s


def _terms(job: SlurmJob) -> JobTerms | None:
    # From the Comment, which only the owner or an operator can write, and not from the store: an owner may
    # give a running job more time, or take it away.
    return decode_comment(job.comment)
