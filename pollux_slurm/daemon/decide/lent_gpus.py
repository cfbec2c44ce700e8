"""What adaptive jobs have beyond the shapes that their owners submitted is lent. Pure.

Rigid jobs that wait may have what is lent, and no more: for their sake no running job goes below the shape
that was submitted. Adaptive jobs may take from each other down to their users' shares. So a round with rigid
jobs first decides without them: what a running job gets there bounds what is its own.

Such a round also decides again about jobs in the middle of a move or a start that may give way. Else a rigid
job would wait for the end of that move, and for another one after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.model import (
    Decision,
    JobState,
    Problem,
    ProblemJob,
    ReallocationCause,
    ReallocationStep,
    ReallocationWay,
)
from pollux_slurm.store.contract.interface import Reallocation, RunPhase

# The most of a start that a job loses to others. A script that takes longer to its first step is let alone.
_STARTS_FOR = timedelta(seconds=60)
_NOT_STOPPED = (ReallocationStep.PLANNED, ReallocationStep.CHECKPOINT_REQUESTED)


def keep_submitted_shapes(
    problem: Problem, decide: Callable[[Problem], Decision], submitted: Mapping[str, int | None]
) -> Problem:
    """Return the problem in which rigid jobs take no more than what is lent.

    `submitted` are the GPUs of each adaptive job as its owner submitted it, None where not known.
    """
    if not any(job.rigid and not job.current for job in problem.jobs):
        return problem
    adaptive = tuple(job for job in problem.jobs if not job.rigid)
    alone = decide(dataclasses.replace(problem, jobs=adaptive))
    gets = {job.job_id: job.allocation.num_gpus for job in alone.jobs}

    def own(job: ProblemJob) -> int:
        most = job.current.num_gpus if job.max_gpus is None else min(job.current.num_gpus, job.max_gpus)
        return min(submitted.get(job.job_id) or 0, most, gets.get(job.job_id, 0))

    return dataclasses.replace(
        problem,
        jobs=tuple(
            job if job.rigid or job.pinned else dataclasses.replace(job, min_gpus=max(job.min_gpus, own(job)))
            for job in problem.jobs
        ),
    )


def is_starting(job: ManagedJob, now: datetime) -> bool:
    """Whether a run began lately, has made no step, and has more GPUs than its owner submitted it with.

    Nothing is trained yet, so that it may be stopped without a checkpoint.
    """
    shown, run = job.slurm, job.record.run
    if shown.state is not JobState.RUNNING or shown.started_at is None or shown.wings:
        return False
    is_this_run = run is not None and run.restart_count == shown.restart_count
    if run is not None and is_this_run and (run.num_steps > 0 or run.phase is RunPhase.FINISHED):
        return False
    return shown.allocation.num_gpus > job.own_gpus and now - shown.started_at <= _STARTS_FOR


def gives_way(job: ManagedJob, now: datetime) -> bool:
    """Whether an open move ends where a round decides otherwise about its job.

    Either it is to grow, and was not stopped for that; or it runs in its target, and is starting there.
    """
    move = job.record.open_reallocation
    if move is None or not is_of_decision(move) or job.slurm.state is not JobState.RUNNING:
        return False
    if move.step in _NOT_STOPPED:
        return move.target.num_gpus > move.source.num_gpus and job.has_reported_this_run
    return move.step is ReallocationStep.RUNNING and is_starting(job, now)


def is_of_decision(move: Reallocation) -> bool:
    """Whether a round decided on a move by requeue of a running job."""
    return (
        move.moves_running
        and move.way is ReallocationWay.REQUEUE
        and move.cause is ReallocationCause.DECISION
    )


def moves_given_up(picture: Picture, decision: Decision, now: datetime) -> tuple[Reallocation, ...]:
    """Return the open moves that give way: the decision gives their jobs anything else than their targets."""
    excluded = {job_id for job_id, _ in decision.excluded}
    decided = {job.job_id: job.allocation for job in decision.jobs if job.job_id not in excluded}
    moves = (job.record.open_reallocation for job in picture.managed if gives_way(job, now))
    return tuple(
        move for move in moves if move and decided.get(move.slurm_job_id, move.target) != move.target
    )


def without_moves(picture: Picture, given_up: tuple[Reallocation, ...]) -> Picture:
    """Return the picture as it is once these moves have ended."""
    jobs = {move.slurm_job_id for move in given_up}
    return dataclasses.replace(
        picture,
        managed=tuple(
            dataclasses.replace(job, record=dataclasses.replace(job.record, open_reallocation=None))
            if job.slurm.job_id in jobs
            else job
            for job in picture.managed
        ),
    )
