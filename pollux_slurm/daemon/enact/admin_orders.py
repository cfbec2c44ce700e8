"""Orders of people to the running daemon: pause, drain and resume of one job. It finds them in the journal.

A manual pause differs from a round's only in its cause: rounds do not move the job until it is resumed. A
drained job ends held, as by `scontrol hold`, instead of parked.
"""

from __future__ import annotations

from datetime import datetime

from pollux_slurm.errors import NotYetError, UsageError
from pollux_slurm.model import Allocation, JobState, ReallocationCause
from pollux_slurm.store.contract.interface import JobRecord, Reallocation, RunPhase, Store


def is_drain(reallocation: Reallocation) -> bool:
    """Whether the job stays held after its checkpoint."""
    return reallocation.cause is ReallocationCause.DRAIN


def is_resume(reallocation: Reallocation) -> bool:
    """Whether the job was resumed manually: it is then released although it is held."""
    return reallocation.cause is ReallocationCause.RESUME


def paused_manually_because(record: JobRecord) -> str | None:
    """Return why rounds do not move a manually paused job, None for any other job."""
    last = record.last_reallocation
    if last is None or not record.is_pause_ordered:
        return None
    return last.reason or "paused manually"


def pause(store: Store, job_id: str, *, by: str, drain: bool, at: datetime) -> Reallocation:
    """Plan that a running job writes a checkpoint and stays pending until it is resumed.

    Raises `UsageError` for a job that does not run, and `NotYetError` for one that has not reported a step,
    or is being moved.
    """
    record = _idle_record(store, job_id)
    if record.state is not JobState.RUNNING or not record.allocation:
        state = "it is paused already" if record.paused_at is not None else f"it is {record.state.value}"
        raise UsageError(
            f"job {job_id} does not run: {state}; to keep it in the queue: scontrol hold {job_id}"
        )
    if record.run is None or record.run.num_steps == 0 or record.run.phase is not RunPhase.TRAINING:
        raise NotYetError(f"job {job_id} has not reported a step in this run yet; try again in a minute")
    return store.journal.plan(
        job_id,
        source=record.allocation,
        target=Allocation(),
        moves_running=True,
        from_restart_count=record.run.restart_count,
        round_id=None,
        at=at,
        cause=ReallocationCause.DRAIN if drain else ReallocationCause.PAUSE,
        reason=f"{'drained' if drain else 'paused'} manually: {by}",
    )


def resume(store: Store, job_id: str, *, by: str, at: datetime) -> Reallocation:
    """Plan that a paused or drained job runs again, on its former nodes if these are free.

    Raises `UsageError` for any other job.
    """
    record = _idle_record(store, job_id)
    last = record.last_reallocation
    if record.paused_at is None or last is None:
        raise UsageError(
            f"job {job_id} is not paused: it is {record.state.value}; a job that you hold: scontrol release "
            f"{job_id}"
        )
    return store.journal.plan(
        job_id,
        source=Allocation(),
        target=last.source,
        moves_running=False,
        from_restart_count=last.from_restart_count + 1,
        round_id=None,
        at=at,
        cause=ReallocationCause.RESUME,
        reason=f"resumed manually: {by}",
    )


def _idle_record(store: Store, job_id: str) -> JobRecord:
    record = store.jobs.get(job_id)
    if record.state.is_over:
        raise UsageError(f"job {job_id} is over: it is {record.state.value}")
    if record.open_reallocation is not None:
        raise NotYetError(
            f"job {job_id} is being moved ({record.open_reallocation.step.value}); try again in a "
            f"minute (pollux status {job_id})"
        )
    return record
