"""Turn a decision into moves, in the order in which they should start. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pollux_slurm.daemon.decide.move_slots import Mover, Slots
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.model import Allocation, Decision, JobState
from pollux_slurm.store.contract.interface import JobRecord

# How long Slurm may take to start a job that fits, including its scheduling cycles.
_SLURM_START_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMove:
    """One job whose allocation is to change."""

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
    may_not_answer: Callable[[JobRecord], bool] = lambda _record: False,
) -> tuple[PlannedMove, ...]:
    """Return the moves that realise `decision`, in the order in which they should start.

    - Pending jobs come first: they need their nodes by name before a running job briefly frees its GPUs.
    - Then running jobs, those that free GPUs first. At most `max_in_flight` run at a time, including open
      ones, and `Slots` limits those of one user and those that `may_not_answer`. Later rounds decide anew
      about the rest.
    - A running job is paused only with `pauses`, and only if the decision has it with no GPUs.
    - A job does not move to GPUs of another job that got no slot to leave them.
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

    in_flight = [
        Mover(job.record.user_name, may_not_answer(job.record))
        for job in picture.managed
        if job.record.open_reallocation is not None and job.record.open_reallocation.moves_running
    ]
    users = {job.record.user_name for job in picture.managed}
    from_running = sorted((move for move in moves if move.moves_running), key=_gpus_gained)
    waiting = sorted((move for move in moves if not move.moves_running), key=_queue_order)
    after_all = _in_use_after(picture, moves)
    while True:
        running = _with_slots(
            from_running, Slots(max_in_flight, users=users, taken_by=in_flight), may_not_answer
        )
        without_room = _without_room(picture, after_all, (*waiting, *running))
        if not without_room:
            break
        # Their slots go to others, so all is checked again.
        from_running = [move for move in from_running if move.job.slurm.job_id not in without_room]
        waiting = [move for move in waiting if move.job.slurm.job_id not in without_room]
    if not running and not in_flight:
        free = {
            node.name: node.num_gpus - node.used_gpus for node in picture.snapshot.nodes if node.available
        }
        waiting = [move for move in waiting if not _slurm_will_start(move, free, picture.snapshot.read_at)]
    return (*waiting, *running)


def _with_slots(
    from_running: Sequence[PlannedMove], slots: Slots, may_not_answer: Callable[[JobRecord], bool]
) -> list[PlannedMove]:
    chosen = []
    for move in from_running:
        if slots.are_used_up:
            break
        mover = Mover(move.job.record.user_name, may_not_answer(move.job.record))
        if slots.has_room_for(mover):
            slots.take(mover)
            chosen.append(move)
    return chosen


def _without_room(
    picture: Picture, after_all: Counter[tuple[str, int]], moves: Sequence[PlannedMove]
) -> frozenset[str]:
    """Return, for each node that `moves` would overfill, the job of the last move that gains there.

    Jobs with an open reallocation count at their target, others at their source or allocation. A node always
    has room for what is in use `after_all` moves that were decided: the decision respects its capacity.
    """
    after = _in_use_after(picture, moves)
    full = set()
    for node in picture.nodes:
        room = (node.num_gpus, node.num_cpus, node.memory_mb)
        for kind, most in enumerate(room):
            if after[node.name, kind] > max(most, after_all[node.name, kind]):
                full.add(node.name)
    last_gaining = {}
    for move in moves:
        source = move.source.as_dict()
        for name, count in move.target.gpus_by_node:
            if name in full and count > source.get(name, 0):
                last_gaining[name] = move.job.slurm.job_id
    return frozenset(last_gaining.values())


def _in_use_after(picture: Picture, moves: Sequence[PlannedMove]) -> Counter[tuple[str, int]]:
    """Return the GPUs (0), CPUs (1) and memory (2) of each node that adaptive jobs use after `moves`."""
    targets = {move.job.slurm.job_id: move.target for move in moves}
    in_use: Counter[tuple[str, int]] = Counter()
    for job in picture.managed:
        open_move = job.record.open_reallocation
        stays = job.slurm.allocation if open_move is None else open_move.target
        for node, count in targets.get(job.slurm.job_id, stays).gpus_by_node:
            in_use[node, 0] += count
            in_use[node, 1] += count * job.record.cpus_per_gpu
            in_use[node, 2] += count * job.record.memory_per_gpu_mb
    return in_use


def _gpus_gained(move: PlannedMove) -> tuple[int, str]:
    return move.target.num_gpus - move.source.num_gpus, move.job.slurm.job_id


def _queue_order(move: PlannedMove) -> tuple[datetime, str]:
    return move.job.record.submitted_at, move.job.slurm.job_id


def _slurm_will_start(move: PlannedMove, free: Mapping[str, int], now: datetime) -> bool:
    """Whether Slurm is about to start the pending job in the shape that it was submitted with.

    A new job that fits is left to Slurm, since its owner chose that shape, unless it waits to be placed. That
    holds only while nothing else moves, or it might start on GPUs of another job's target. A job that is
    still pending after some seconds lacks something else, such as CPUs, and is placed by the daemon.
    """
    job = move.job.slurm
    return (
        job.state is JobState.PENDING
        and job.restart_count == 0
        and not job.waits_for_placing
        and (now - move.job.record.submitted_at).total_seconds() < _SLURM_START_S
        and any(gpus >= job.requested_gpus for gpus in free.values())
    )
