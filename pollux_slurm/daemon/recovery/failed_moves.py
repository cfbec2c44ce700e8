"""Return jobs that failed in a new shape to their previous one, once, and do not move them again. Pure.

A job that fails after a move and before its first step there is not over: Slurm can still requeue it. It gets
a *return*: a reallocation to its previous shape, which starts at the requeue.

    ... → running → failed (job_failed)                     the job is FAILED in Slurm
    requeued → reshaped → released → running → confirmed    (cause: after_failure)

A job that was reshaped while pending, after a pause or an external requeue, is handled in the same way. Its
reallocation is confirmed when the job starts, so the failure is recognised by a run without a step. A job
that never ran before has no shape to return to: it is over.
"""

from __future__ import annotations

from collections.abc import Iterable

from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    JobState,
    ReallocationCause,
    ReallocationStep,
    SlurmJob,
)
from pollux_slurm.now.known_jobs import is_recorded_job
from pollux_slurm.store.contract.interface import AllocationRecord, JobRecord, Reallocation

_SHAPED_STEPS = (ReallocationStep.CONFIRMED, ReallocationStep.FAILED)
_RETURN = "returned to the shape it last ran in, after it failed"


def failure_reason(job: SlurmJob, reallocation: Reallocation) -> str:
    """Return the journal's reason when a job failed in the target of `reallocation`."""
    return f"failed before its first step: exit code {job.exit_code} in {reallocation.target}"


def return_reason(failed_move: Reallocation, job: SlurmJob) -> str:
    """Return the journal's reason for returning a job that failed in the target of `failed_move`."""
    return f"{_RETURN}: exit code {job.exit_code} in {failed_move.target}"


def is_return(reallocation: Reallocation | None) -> bool:
    """Whether a reallocation returns a job after a failed move."""
    return reallocation is not None and reallocation.cause is ReallocationCause.AFTER_FAILURE


def failed_after_move(record: JobRecord, job: SlurmJob | None) -> bool:
    """Whether the job failed in the run that a reallocation started, and has not been returned yet."""
    last = record.last_reallocation
    if last is None or job is None or job.state is not JobState.FAILED:
        return False
    if job.unschedulable_reason is not None or not is_recorded_job(job, record):
        return False
    if not last.moves_running:
        return last.step in _SHAPED_STEPS and _failed_after_start(record, last, job)
    return (
        last.step is ReallocationStep.FAILED
        and last.job_failed
        and bool(last.source)
        and job.restart_count == last.from_restart_count + 1
    )


def _failed_after_start(record: JobRecord, last: Reallocation, job: SlurmJob) -> bool:
    """Whether the job ran before, and then failed before a step in the shape it got while pending."""
    run = record.run
    starts = job.restart_count - last.from_restart_count
    # More than one start: it was requeued externally, or lost its node, before it was placed.
    is_its_start = starts == 0 or (starts > 0 and last.step is not ReallocationStep.CONFIRMED)
    return (
        is_its_start
        and job.restart_count > 0
        and run is not None
        and (run.restart_count < job.restart_count or run.num_steps == 0)
    )


def shape_to_return_to(failed_move: Reallocation, history: Iterable[AllocationRecord]) -> Allocation:
    """Return the shape that the job last ran in before `failed_move`, or its target where none is known."""
    if failed_move.source:
        return failed_move.source
    planned_at = failed_move.entered_at(ReallocationStep.PLANNED)
    before = [
        interval.allocation
        for interval in history
        if interval.allocation and (planned_at is None or interval.started_at < planned_at)
    ]
    return before[-1] if before else failed_move.target


def is_not_over(record: JobRecord, job: SlurmJob) -> bool:
    """Whether a job that is FAILED in Slurm is not over, because it is or will be returned."""
    if job.state is not JobState.FAILED:
        return False
    open_move = record.open_reallocation
    if open_move is None:
        return failed_after_move(record, job)
    if is_return(open_move):
        return True
    started = open_move.step in (ReallocationStep.RELEASED, ReallocationStep.RUNNING)
    return started and (open_move.moves_running or _failed_after_start(record, open_move, job))


def not_moved_because(record: JobRecord) -> str | None:
    """Return why the daemon does not move a job whose last move was a return; None for any other."""
    last = record.last_reallocation
    if last is None or not last.step.is_end or not is_return(last):
        return None
    return last.reason or _RETURN


def jobs_to_return(
    snapshot: ClusterSnapshot, records: Iterable[JobRecord]
) -> list[tuple[JobRecord, SlurmJob]]:
    """Return the failed jobs that are to be returned."""
    by_id = {job.job_id: job for job in snapshot.jobs}
    pairs = ((record, by_id.get(record.slurm_job_id)) for record in records)
    return [(record, job) for record, job in pairs if job is not None and failed_after_move(record, job)]
