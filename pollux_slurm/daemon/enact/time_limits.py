"""Time limits over all runs of a job, and jobs that run in slices of time. Pure.

Slurm counts a time limit anew from each start, so each move subtracts the time of earlier runs
(`time_left_s`). A job submitted with `pollux sbatch --time=SLICE --total-time=TOTAL` runs in slices. Before a
slice ends, the job writes a checkpoint and is requeued with another slice, until all runs together have used
TOTAL. This is a *renewal*: a reallocation whose target is its source.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pollux_slurm.config import DaemonConfig
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob
from pollux_slurm.daemon.observe.used_time import used_s
from pollux_slurm.model import JobState, JobTerms, ReallocationCause, SlurmJob
from pollux_slurm.now.known_jobs import is_recorded_job
from pollux_slurm.slurm.parsing.comment_terms import decode_comment
from pollux_slurm.slurm.sbatch.request import sigterm_lead_s
from pollux_slurm.store.contract.interface import AllocationRecord, JobRecord, Reallocation

# The least time limit of a moved job: it needs time to write a checkpoint.
_MIN_TIME_LEFT_S = 60.0
# How much too early Slurm may send a signal before a time limit (sbatch's manual).
_SIGNAL_EARLY_S = 60.0
RENEWAL = "near its time limit, and its owner allows another slice"
"""The reason of a renewal in the journal."""


def time_left_s(job: SlurmJob, now: datetime) -> float | None:
    """Return what a running or ended job has left of its time limit; None without a limit."""
    if job.time_limit_s is None or job.started_at is None:
        return None
    used_s = max(((job.ended_at or now) - job.started_at).total_seconds(), 0.0)
    return max(job.time_limit_s - used_s, min(_MIN_TIME_LEFT_S, job.time_limit_s))


def next_slice_s(
    job: SlurmJob, record: JobRecord, history: Iterable[AllocationRecord], now: datetime
) -> float | None:
    """Return the time limit of the next run, in seconds; None when the job gets no further slice.

    A further slice must add at least a minute to what the current run has left. Otherwise the last slice, cut
    by the total, would be given again and again.

    The daemon may set any time limit, and an owner must not gain from that. So no run gets more than Slurm
    granted when the job was registered, or, where that is unknown, than the job has now.
    """
    terms = _terms(job)
    if terms is None or terms.slice_s is None or terms.total_s is None:
        return None
    granted_s = job.time_limit_s if record.granted_time_limit_s is None else record.granted_time_limit_s
    left_s = min(float(terms.slice_s), terms.total_s - used_s(job, history, now))
    left_s = left_s if granted_s is None else min(left_s, granted_s)
    return left_s if left_s >= (job.time_left_s(now) or 0.0) + _MIN_TIME_LEFT_S else None


def is_renewal(reallocation: Reallocation) -> bool:
    """Whether a reallocation gives the job another slice of time on the same nodes."""
    return reallocation.cause is ReallocationCause.TIME_LIMIT


def is_ending(job: ManagedJob, now: datetime, config: DaemonConfig) -> bool:
    """Whether the job's slice is about to end, so that its checkpoint is due for a renewal.

    The margin allows for the checkpoint's time-out and a late round; of a short slice it is the last third.
    It begins before Slurm sends SIGTERM, after which the job would end: that comes up to a minute earlier
    than `pollux sbatch` requests. It never covers the first half of a run, so that a run whose limit is far
    below its slice is not renewed over and over.
    """
    slurm = job.slurm
    terms = _terms(slurm)
    if terms is None or terms.total_s is None or terms.slice_s is None:
        return False
    if slurm.state is not JobState.RUNNING or job.in_flight or not job.has_reported_this_run:
        return False
    run_left_s = slurm.time_left_s(now)
    if run_left_s is None or slurm.unschedulable_reason is not None:
        return False
    if not is_recorded_job(slurm, job.record):
        return False
    granted_s = job.record.granted_time_limit_s
    run_s = float(terms.slice_s) if granted_s is None else min(terms.slice_s, granted_s)
    checkpoint_s = min(config.checkpoint_timeout_s + 2 * config.interval_s, run_s / 3)
    signal_s = sigterm_lead_s(terms.slice_s) + _SIGNAL_EARLY_S + 2 * config.interval_s
    margin_s = max(checkpoint_s, min(signal_s, run_s / 2))
    return run_left_s <= margin_s


def _terms(job: SlurmJob) -> JobTerms | None:
    # From the Comment and not from the store: owners may change the total of a running job there.
    return decode_comment(job.comment)
