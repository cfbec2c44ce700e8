"""Turn a decision into the reallocations that realise it, in the order in which they should begin. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pollux_slurm.daemon.decide.concurrent_moves import Mover, Slots
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.model import Allocation, Decision, JobState
from pollux_slurm.store.contract.interface import JobRecord

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
    picture: Picture,
    decision: Decision,
    *,
    max_in_flight: int,
    pauses: bool = False,
    is_doubtful: Callable[[JobRecord], bool] = lambda _record: False,
) -> tuple[PlannedMove, ...]:
    """Return the moves that `decision` asks for, in the order in which they should begin.

    Waiting jobs come first: they cost nobody anything, and must have their place by name before a running
    job leaves GPUs for a moment that it is to come back to. Then those that free GPUs. At most
    `max_in_flight` running jobs are on the move at a time, those already in flight included, and of one user,
    and of those that are `is_doubtful`, at most as many as `Slots` allows. The rest is left to later rounds,
    which decide afresh. A running job is taken down to nothing only with `pauses`, and only when that was
    decided: not when nothing was decided about it. Nor does a job move to what another holds that got no slot
    to leave it.
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
        Mover(job.record.user_name, is_doubtful(job.record))
        for job in picture.managed
        if job.record.open_reallocation is not None and job.record.open_reallocation.moves_running
    ]
    users = {job.record.user_name for job in picture.managed}
    candidates = sorted((move for move in moves if move.moves_running), key=_gpus_gained)
    waiting = sorted((move for move in moves if not move.moves_running), key=_queue_order)
    while True:
        running = _with_slots(candidates, Slots(max_in_flight, users=users, taken_by=already), is_doubtful)
        too_many = _without_room(picture, moves, (*waiting, *running))
        if not too_many:
            break
        # Their slots are others': what these free, or need, is looked at anew.
        candidates = [move for move in candidates if move.job.slurm.job_id not in too_many]
        waiting = [move for move in waiting if move.job.slurm.job_id not in too_many]
    if not running and not already:
        free = {
            node.name: node.num_gpus - node.used_gpus for node in picture.snapshot.nodes if node.available
        }
        waiting = [move for move in waiting if not _starts_by_itself(move, free, picture.snapshot.read_at)]
    return (*waiting, *running)


def _with_slots(
    candidates: Sequence[PlannedMove], slots: Slots, is_doubtful: Callable[[JobRecord], bool]
) -> list[PlannedMove]:
    chosen = []
    for move in candidates:
        mover = Mover(move.job.record.user_name, is_doubtful(move.job.record))
        if slots.has_room_for(mover):
            slots.take(mover)
            chosen.append(move)
    return chosen


def _without_room(
    picture: Picture, decided: Sequence[PlannedMove], moves: Sequence[PlannedMove]
) -> frozenset[str]:
    """Return, for each node that cannot hold all that `moves` lead there, the last of them that gains there.

    Jobs under way count where they go, all others where they are. A node holds what all moves that were
    `decided` would lead there: whatever else stands in their way leaves, or the decision would be another.
    """
    after_all, after = _held_after(picture, decided), _held_after(picture, moves)
    full = set()
    for node in picture.nodes:
        room = (node.num_gpus, node.num_cpus, node.memory_mb)
        for kind, most in enumerate(room):
            if after[node.name, kind] > max(most, after_all[node.name, kind]):
                full.add(node.name)
    last_gaining = {}
    for move in moves:
        held = move.source.as_dict()
        for name, count in move.target.gpus_by_node:
            if name in full and count > held.get(name, 0):
                last_gaining[name] = move.job.slurm.job_id
    return frozenset(last_gaining.values())


def _held_after(picture: Picture, moves: Sequence[PlannedMove]) -> Counter[tuple[str, int]]:
    """Return the GPUs (0), CPUs (1) and memory (2) of each node that adaptive jobs hold after `moves`."""
    targets = {move.job.slurm.job_id: move.target for move in moves}
    held: Counter[tuple[str, int]] = Counter()
    for job in picture.managed:
        under_way = job.record.open_reallocation
        stays = job.slurm.allocation if under_way is None else under_way.target
        for node, count in targets.get(job.slurm.job_id, stays).gpus_by_node:
            held[node, 0] += count
            held[node, 1] += count * job.record.cpus_per_gpu
            held[node, 2] += count * job.record.memory_per_gpu_mb
    return held


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
