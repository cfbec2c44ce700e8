"""Jobs that have lost their place: a move stopped them, and it has not given them GPUs again in time.

Pure. A moved job keeps its place (`pollux_slurm.daemon.enact.kept_places`): none is here while all is well,
and an alert rests on that. It does not count what others did: a hold, a pause or a requeue by a person, a
later begin time, a preemption, a node that failed, the job's own end or failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.model import Allocation, JobState, ReallocationCause
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.now.refusals import is_held_for_its_shape
from pollux_slurm.store.contract.interface import Reallocation

HELD_EXTERNALLY = "the job was held externally"
"""Why a move of a job that its owner held has failed."""

# The others stop no job that trains.
_STOPPING = frozenset(
    {ReallocationCause.DECISION, ReallocationCause.TIME_LIMIT, ReallocationCause.AFTER_FAILURE}
)


# For so long after it was stopped, a job that has lost its place is to have it back.
_RESTORED_FOR = timedelta(minutes=10)


def stopped_jobs(
    picture: Picture, moves_of: Callable[[str], Sequence[Reallocation]], now: datetime
) -> dict[str, Reallocation]:
    """Return the moves that have stopped jobs which wait since then, by job.

    `moves_of` returns a job's reallocations, oldest first; it is called only for jobs without GPUs about
    which a later one was decided.
    """
    responding = {node.name for node in picture.snapshot.nodes if node.responds}
    waiting = (job for job in picture.managed if _waits_by_no_ones_will(job, now))
    found = {job.slurm.job_id: move_that_stopped(job, moves_of) for job in waiting}
    return {
        job_id: move
        for job_id, move in found.items()
        if move is not None and responding.issuperset(move.source.nodes)
    }


def lost_places(
    stopped: Mapping[str, Reallocation], now: datetime, *, longest_stop_s: float
) -> frozenset[str]:
    """Return which of the `stopped_jobs` have lost their place, after `longest_stop_s`."""
    return frozenset(
        job_id
        for job_id, move in stopped.items()
        if stopped_for(move, now) > timedelta(seconds=longest_stop_s)
    )


def stopped_for(move: Reallocation, now: datetime) -> timedelta:
    """Return for how long a move has stopped its job."""
    return now - (move.entered_at(Step.REQUEUED) or now)


def restores(move: Reallocation, target: Allocation, now: datetime) -> bool:
    """Whether a job that `move` has stopped has no more than its place back with a target, and soon."""
    return target.num_gpus <= move.source.num_gpus and stopped_for(move, now) < _RESTORED_FOR


def _waits_by_no_ones_will(job: ManagedJob, now: datetime) -> bool:
    """Whether a job is without GPUs that it had, and no person holds, pauses or delays it."""
    slurm, record = job.slurm, job.record
    # An anchor without a wing is COMPLETING.
    if slurm.state not in (JobState.PENDING, JobState.COMPLETING) or slurm.allocation:
        return False
    is_ours = slurm.held_by_slurm or is_held_for_its_shape(slurm) or job.in_flight
    if record.started_at is None or record.paused_at is not None or (slurm.held and not is_ours):
        return False
    return slurm.begins_at is None or slurm.begins_at <= now


def move_that_stopped(
    job: ManagedJob, moves_of: Callable[[str], Sequence[Reallocation]]
) -> Reallocation | None:
    """Return the move that took the job's last GPUs; None where anything else did, or it never had any.

    `moves_of` is called only where a later move was planned.
    """
    last = job.record.last_reallocation
    if last is None:
        return None
    ran = last.entered_at(Step.RUNNING) is not None
    newest_first = [last] if last.moves_running or ran else reversed(moves_of(job.slurm.job_id))
    for move in newest_first:
        if move.entered_at(Step.RUNNING) is not None or move.cause.is_order:
            return None  # the job ran in its target, and lost that later
        if move.moves_running:
            return move if _has_stopped(move, job) else None
    return None


def _has_stopped(move: Reallocation, job: ManagedJob) -> bool:
    run, before = job.record.run, move.from_restart_count
    return (
        move.cause in _STOPPING
        and bool(move.target)
        and move.entered_at(Step.REQUEUED) is not None
        and move.step is not Step.ROLLED_BACK
        and not (move.reason or "").endswith(HELD_EXTERNALLY)
        and job.slurm.restart_count in (before, before + 1)
        and (run is None or run.restart_count <= before)
    )
