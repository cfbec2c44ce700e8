"""Jobs that failed in a new shape: back to the one they last ran in, once, and then left alone. Pure.

A job that ends with an error after a reallocation and before its first step there is not over yet: Slurm can
still put it back into the queue. Its old shape is a reallocation like any other, which begins where the job
is stopped, and the journal has its cause.

    ... → running → failed (job_failed)                     the job is FAILED in Slurm
    requeued → reshaped → released → running → confirmed    (cause: after_failure)

A job that was given its shape while it waited, after a pause or a requeue by another hand, falls in the same
way. That reallocation is confirmed when the job starts, so what tells is that the run has made no step; and a
job that has never run before has no shape to go back to: it is over.
"""

from __future__ import annotations

from collections.abc import Iterable

from pollux_slurm.daemon.observe.cluster_picture import is_recorded_job
from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    JobState,
    ReallocationCause,
    ReallocationStep,
    SlurmJob,
)
from pollux_slurm.store.contract.interface import AllocationRecord, JobRecord, Reallocation

_SHAPED = (ReallocationStep.CONFIRMED, ReallocationStep.FAILED)
_BACK = "back to the shape it last ran in, after it failed"


def reason_of_fall(job: SlurmJob, reallocation: Reallocation) -> str:
    """Return what the journal says of a job that failed where `reallocation` had brought it."""
    return f"failed before its first step: exit code {job.exit_code} in {reallocation.target}"


def reason_of_return(fall: Reallocation, job: SlurmJob) -> str:
    """Return what the journal says of the way back of a job that fell in the shape that `fall` gave it."""
    return f"{_BACK}: exit code {job.exit_code} in {fall.target}"


def is_return(reallocation: Reallocation | None) -> bool:
    """Whether a reallocation brings (or brought) a job back from a fall."""
    return reallocation is not None and reallocation.cause is ReallocationCause.AFTER_FAILURE


def has_fallen(record: JobRecord, job: SlurmJob | None) -> bool:
    """Whether the job failed in the run that a reallocation began, and has not been brought back yet."""
    last = record.last_reallocation
    if last is None or job is None or job.state is not JobState.FAILED:
        return False
    if job.unschedulable_reason is not None or not is_recorded_job(job, record):
        return False
    if not last.moves_running:
        return last.step in _SHAPED and _has_fallen_from_the_queue(record, last, job)
    return (
        last.step is ReallocationStep.FAILED
        and last.job_failed
        and bool(last.source)
        and job.restart_count == last.from_restart_count + 1
    )


def _has_fallen_from_the_queue(record: JobRecord, last: Reallocation, job: SlurmJob) -> bool:
    """Whether it has run before, and failed before a step in the shape that `last` gave it as it waited."""
    run = record.run
    starts = job.restart_count - last.from_restart_count
    # More than one start: it was requeued by another hand, or its node was lost, before it had its place.
    is_its_start = starts == 0 or (starts > 0 and last.step is not ReallocationStep.CONFIRMED)
    return (
        is_its_start
        and job.restart_count > 0
        and run is not None
        and (run.restart_count < job.restart_count or run.num_steps == 0)
    )


def shape_to_return_to(fall: Reallocation, history: Iterable[AllocationRecord]) -> Allocation:
    """Return the shape that the job last ran in before `fall`; where nobody saw it, that of `fall` again."""
    if fall.source:
        return fall.source
    planned_at = fall.entered_at(ReallocationStep.PLANNED)
    before = [
        held.allocation
        for held in history
        if held.allocation and (planned_at is None or held.started_at < planned_at)
    ]
    return before[-1] if before else fall.target


def is_unsettled(record: JobRecord, job: SlurmJob) -> bool:
    """Whether a job that Slurm shows as FAILED is not over for us: it fell, or is on its way back."""
    if job.state is not JobState.FAILED:
        return False
    under_way = record.open_reallocation
    if under_way is None:
        return has_fallen(record, job)
    if is_return(under_way):
        return True
    started = under_way.step in (ReallocationStep.RELEASED, ReallocationStep.RUNNING)
    return started and (under_way.moves_running or _has_fallen_from_the_queue(record, under_way, job))


def left_alone_because(record: JobRecord) -> str | None:
    """Return why the daemon no longer moves a job: its last move was the way back from a fall."""
    last = record.last_reallocation
    if last is None or not last.step.is_end or not is_return(last):
        return None
    return last.reason or _BACK


def fallen(snapshot: ClusterSnapshot, records: Iterable[JobRecord]) -> list[tuple[JobRecord, SlurmJob]]:
    """Return the jobs that are to be brought back."""
    by_id = {job.job_id: job for job in snapshot.jobs}
    pairs = ((record, by_id.get(record.slurm_job_id)) for record in records)
    return [(record, job) for record, job in pairs if job is not None and has_fallen(record, job)]
