"""The shapes of a stopped job that does not start in its target: the last one it ran in, or what is free."""

from __future__ import annotations

from collections.abc import Iterable

from pollux_slurm.daemon.enact.gpu_ledger import GpuLedger, Needs
from pollux_slurm.daemon.enact.move_actions import MoveActions
from pollux_slurm.daemon.enact.open_move import OpenMove
from pollux_slurm.model import Allocation, JobShape
from pollux_slurm.now import refusals


class OtherShapes:
    """Chooses another target, once, and then the shapes with which a job starts on any node."""

    def __init__(self, actions: MoveActions) -> None:
        self._actions = actions

    def on_any_node(self, move: OpenMove, ledger: GpuLedger) -> Iterable[JobShape]:
        """Yield its old shape if that is free, the most GPUs that one node has free, and the job's minimum.

        Slurm chooses the node. A job with possible leftover processes gets neither: it waits until its begin
        time, two minutes after its requeue, and rounds continue from there (`returned_nodes`).
        """
        reallocation, needs, least = move.reallocation, needs_of(move), _min_gpus(move)
        if ledger.may_have_leftover(reallocation.source):
            return
        source = reallocation.source
        if source and ledger.has_room_for(source, own_id=reallocation.id):
            yield JobShape.of(source, cpus_per_gpu=needs.cpus_per_gpu)
        most = max(reallocation.target.num_gpus, source.num_gpus, least)
        if move.job is not None:
            num_gpus = ledger.most_on_one_node(move.job, most=most, needs=needs, own_id=reallocation.id)
            while num_gpus > least and self._is_refused(move, Allocation.of({"": num_gpus})):
                num_gpus -= 1
            if num_gpus > least:
                yield JobShape(num_gpus=num_gpus, nodes=needs.required_nodes, cpus_per_gpu=needs.cpus_per_gpu)
        yield JobShape(num_gpus=least, nodes=needs.required_nodes, cpus_per_gpu=needs.cpus_per_gpu)

    def choose_target(
        self, move: OpenMove, ledger: GpuLedger, *, refused: str | None = None
    ) -> OpenMove | None:
        """Journal, once, another target for a job whose target was taken or `refused`; None if nothing fits.

        It is the allocation nearest to the target, or the last one that the job ran in: where that is free,
        and the target was refused or the nearest has fewer GPUs.
        """
        reallocation, job = move.reallocation, move.job
        if job is None or not reallocation.target or reallocation.retargeted:
            return None
        target = reallocation.target
        last = reallocation.source if refused is None else self._last_shape(move)
        found = ledger.best_fit(job, target, needs=needs_of(move), own_id=reallocation.id)
        can_return = bool(last) and last != target and ledger.has_room_for(last, own_id=reallocation.id)
        if can_return and (refused is not None or found.num_gpus < min(last.num_gpus, target.num_gpus)):
            found = last
        if found == target or found.num_gpus < _min_gpus(move) or self._is_refused(move, found):
            return None
        why = "which was taken or drained"
        if refused is not None:
            why = f"which Slurm {refusals.verb_of(refused)} ({refused})"
        retargeted = self._actions.retarget(move, found, f"instead of {target}, {why}")
        if retargeted is not None:
            ledger.reserve(retargeted.reallocation)
        return retargeted

    def _last_shape(self, move: OpenMove) -> Allocation:
        """Return the shape that the job last ran in, empty for one that never ran."""
        if move.reallocation.source:
            return move.reallocation.source
        history = self._actions.store.history.allocations(move.job_id)
        return next((one.allocation for one in reversed(history) if one.allocation), Allocation())

    def _is_refused(self, move: OpenMove, allocation: Allocation) -> bool:
        """Whether Slurm refused an allocation of this job lately."""
        record, job = move.record, move.job
        if record is None or job is None:
            return False
        known, now = [*record.refusals], self._actions.clock()
        if (refusal := self._actions.refused_here(move)) is not None:
            known.append(refusal)
        return refusals.not_tried_because(known, refusals.request_of(job), allocation, now) is not None


def needs_of(move: OpenMove) -> Needs:
    record = move.record
    if record is None:
        return Needs()
    return Needs(
        cpus_per_gpu=record.cpus_per_gpu,
        memory_per_gpu_mb=record.memory_per_gpu_mb,
        required_nodes=record.required_nodes,
    )


def _min_gpus(move: OpenMove) -> int:
    return move.record.terms.min_gpus if move.record else 1
