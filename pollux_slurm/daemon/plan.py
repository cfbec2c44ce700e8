"""Turn a decision into the reallocations that realise it, in the order in which they should begin. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pollux_slurm.daemon.observe import ManagedJob, Picture
from pollux_slurm.model import Allocation, Decision, JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMove:
    """One job that is to change allocation."""

    job: ManagedJob
    source: Allocation
    target: Allocation

    @property
    def moves_running(self) -> bool:
        return bool(self.source)


def planned_moves(picture: Picture, decision: Decision, *, max_in_flight: int) -> tuple[PlannedMove, ...]:
    """Return the moves that `decision` asks for, those that free GPUs first.

    At most `max_in_flight` running jobs are on the move at a time, those already in flight included; the
    rest is left to later rounds, which decide afresh. Jobs that wait in the queue cost nobody anything, so
    they are not counted. A running job is never taken down to nothing.
    """
    excluded = {job_id for job_id, _ in decision.excluded}
    moves = []
    for job in picture.managed:
        target = decision.allocation(job.slurm.job_id)
        source = job.slurm.allocation
        if job.in_flight or job.slurm.job_id in excluded or not target or target == source:
            continue
        if not source and _starts_like_that_anyway(job, target):
            continue
        moves.append(PlannedMove(job=job, source=source, target=target))

    already = sum(
        job.record.open_reallocation.moves_running
        for job in picture.managed
        if job.record.open_reallocation is not None
    )
    waiting = [move for move in moves if not move.moves_running]
    running = sorted((move for move in moves if move.moves_running), key=_gpus_gained)
    return (*running[: max(max_in_flight - already, 0)], *_in_queue_order(waiting))


def _gpus_gained(move: PlannedMove) -> tuple[int, str]:
    return move.target.num_gpus - move.source.num_gpus, move.job.slurm.job_id


def _in_queue_order(moves: Iterable[PlannedMove]) -> list[PlannedMove]:
    return sorted(moves, key=lambda move: (move.job.record.submitted_at, move.job.slurm.job_id))


def _starts_like_that_anyway(job: ManagedJob, target: Allocation) -> bool:
    """Whether Slurm will start the waiting job at the size decided, on one node, without our help."""
    return (
        job.slurm.state is JobState.PENDING
        and target.num_nodes == 1
        and job.slurm.requested_gpus == target.num_gpus
    )
