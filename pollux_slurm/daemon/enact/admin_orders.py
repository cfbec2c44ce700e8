"""What an admin may order for one job, through the journal: pause, drain, resume. The daemon carries it out.

A pause by hand is a reallocation to no GPUs like any other, but for its cause: rounds leave its job alone
until it is resumed. A drained job is held in the end, as by `scontrol hold`, instead of parked.
"""

from __future__ import annotations

from datetime import datetime

from pollux_slurm.errors import UsageError
from pollux_slurm.model import Allocation, JobState, ReallocationCause
from pollux_slurm.store.contract.interface import JobRecord, Reallocation, RunPhase, Store


def is_drain(reallocation: Reallocation) -> bool:
    """Whether the job is to stay held after its checkpoint."""
    return reallocation.cause is ReallocationCause.DRAIN


def is_resume(reallocation: Reallocation) -> bool:
    """Whether somebody ordered that the job runs again: a hold is then no reason to leave it."""
    return reallocation.cause is ReallocationCause.RESUME


def kept_by_hand(record: JobRecord) -> str | None:
    """Return why rounds leave a paused job alone, None where nobody ordered it."""
    last = record.last_reallocation
    if last is None or not record.is_pause_ordered:
        return None
    return last.reason or "paused by hand"


def pause(store: Store, job_id: str, *, by: str, drain: bool, at: datetime) -> Reallocation:
    """Order that a running job writes a checkpoint and waits in the queue until it is resumed.

    Raises `UsageError` for a job that does not run, has told of no step yet, or is just being moved.
    """
    record = _settled(store, job_id)
    if record.state is not JobState.RUNNING or not record.allocation:
        keep = "it is paused already" if record.paused_at is not None else f"it is {record.state.value}"
        raise UsageError(
            f"job {job_id} does not run: {keep}; to keep it in the queue: scontrol hold {job_id}"
        )
    if record.run is None or record.run.num_steps == 0 or record.run.phase is not RunPhase.TRAINING:
        raise UsageError(f"job {job_id} has told of no step in this run yet; try again in a minute")
    return store.plan_reallocation(
        job_id,
        source=record.allocation,
        target=Allocation(),
        moves_running=True,
        from_restart_count=record.run.restart_count,
        round_id=None,
        at=at,
        cause=ReallocationCause.DRAIN if drain else ReallocationCause.PAUSE,
        reason=f"{'drained' if drain else 'paused'} by hand: {by}",
    )


def resume(store: Store, job_id: str, *, by: str, at: datetime) -> Reallocation:
    """Order that a paused or drained job runs again, in the place it had if that is free.

    Raises `UsageError` for a job that is neither.
    """
    record = _settled(store, job_id)
    last = record.last_reallocation
    if record.paused_at is None or last is None:
        raise UsageError(
            f"job {job_id} is not paused: it is {record.state.value}; a job that you hold: scontrol release "
            f"{job_id}"
        )
    return store.plan_reallocation(
        job_id,
        source=Allocation(),
        target=last.source,
        moves_running=False,
        from_restart_count=last.from_restart_count + 1,
        round_id=None,
        at=at,
        cause=ReallocationCause.RESUME,
        reason=f"resumed by hand: {by}",
    )


def _settled(store: Store, job_id: str) -> JobRecord:
    record = store.job(job_id)
    if record.state.is_over:
        raise UsageError(f"job {job_id} is over: it is {record.state.value}")
    if record.open_reallocation is not None:
        raise UsageError(
            f"job {job_id} is just being moved ({record.open_reallocation.step.value}); try again in a "
            f"minute (pollux status {job_id})"
        )
    return record
