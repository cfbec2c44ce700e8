"""Turn a decision into the reallocations that realise it, in the order in which they should begin. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pollux_slurm.daemon.observe import ManagedJob, Picture
from pollux_slurm.daemon.slots import Slots
from pollux_slurm.model import Allocation, Decision, JobState

# How long Slurm gets to start a job that fits (its own cycles of scheduling included).
_STARTING_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMove:
    """One job that is to change allocation."""

    job: ManagedJob
    source: Allocation
    target: Allocation

    @property
    def moves_running(self) -> bool:
        return bool(self.source)


def planned_moves(
    picture: Picture, decision: Decision, *, max_in_flight: int, pauses: bool = False
) -> tuple[PlannedMove, ...]:
    """Return the moves that `decision` asks for, in the order in which they should begin.

    Waiting jobs come first: they cost nobody anything, and must have their place by name before a running
    job leaves GPUs for a moment that it is to come back to. Then those that free GPUs. At most
    `max_in_flight` running jobs are on the move at a time, those already in flight included, and of one user
    at most as many as `Slots` allows; the rest is left to later rounds, which decide afresh. A running job is
    taken down to nothing only with `pauses`, and only when that was decided: not when nothing was decided
    about it.
    """
    excluded = {job_id for job_id, _ in decision.excluded}
    targets = {job.job_id: job.allocation for job in decision.jobs if job.job_id not in excluded}
    moves = []
    for job in picture.managed:
        target = targets.get(job.slurm.job_id)
        source = job.slurm.allocation
        if job.in_flight or target is None or target == source:
            continue
        if target or (pauses and job.slurm.state is JobState.RUNNING):
            moves.append(PlannedMove(job=job, source=source, target=target))

    already = [
        job.record.user_name
        for job in picture.managed
        if job.record.open_reallocation is not None and job.record.open_reallocation.moves_running
    ]
    slots = Slots(max_in_flight, users={job.record.user_name for job in picture.managed}, taken_by=already)
    running = []
    for move in sorted((move for move in moves if move.moves_running), key=_gpus_gained):
        if slots.has_room_for(move.job.record.user_name):
            slots.take(move.job.record.user_name)
            running.append(move)
    waiting = sorted((move for move in moves if not move.moves_running), key=_queue_order)
    if not running and not already:
        free = {
            node.name: node.num_gpus - node.used_gpus for node in picture.snapshot.nodes if node.available
        }
        waiting = [move for move in waiting if not _starts_by_itself(move, free, picture.snapshot.read_at)]
    return (*waiting, *running)


def _gpus_gained(move: PlannedMove) -> tuple[int, str]:
    return move.target.num_gpus - move.source.num_gpus, move.job.slurm.job_id


def _queue_order(move: PlannedMove) -> tuple[datetime, str]:
    return move.job.record.submitted_at, move.job.slurm.job_id


def _starts_by_itself(move: PlannedMove, free: Mapping[str, int], now: datetime) -> bool:
    """Whether Slurm is about to start the waiting job in the shape that it was submitted in.

    That shape is its owner's wish, so a job that has just come and fits is left to Slurm. Only while nothing
    else is on the move: else it might start on GPUs that are promised to another. One that still waits after
    some seconds lacks something else, such as CPUs, and is given its place.
    """
    job = move.job.slurm
    return (
        job.state is JobState.PENDING
        and job.restart_count == 0
        and (now - move.job.record.submitted_at).total_seconds() < _STARTING_S
        and any(gpus >= job.requested_gpus for gpus in free.values())
    )
