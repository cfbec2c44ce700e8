"""The GPUs that reallocations wait for: free, being freed by other jobs, or lost.

Pure, except for the reservations made within one tick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from pollux_slurm.daemon.observe.returned_nodes import may_have_leftover, unsettled_nodes
from pollux_slurm.model import Allocation, ClusterSnapshot, ReallocationStep, ReallocationWay, SlurmJob
from pollux_slurm.model.cluster import MOVE_TAKES
from pollux_slurm.store.contract.interface import Reallocation

# Steps in which the target's GPUs are reserved: until the job runs there.
_RESERVING = (
    ReallocationStep.CHECKPOINT_REQUESTED,
    ReallocationStep.CHECKPOINTED,
    ReallocationStep.REQUEUED,
    ReallocationStep.RESHAPED,
    ReallocationStep.RELEASED,
    ReallocationStep.REGROUP_REQUESTED,
)
# Steps in which Slurm may start the job, or a wing of it, on the target.
_STARTING = (ReallocationStep.RELEASED, ReallocationStep.REGROUP_REQUESTED)
_RESHAPED = (ReallocationStep.RESHAPED, ReallocationStep.RELEASED)
# How long a donor waits for the wings that get its GPUs to stand in the queue: their anchors poll the store.
RECEIVER_WAIT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a job needs of a node for each GPU, and the nodes in its --nodelist."""

    cpus_per_gpu: int = 1
    memory_per_gpu_mb: int = 0
    required_nodes: tuple[str, ...] = ()


class GpuLedger:
    """The GPUs of each node in one tick: in use, owned by each moving job, and reserved for it."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        open_reallocations: Sequence[Reallocation],
        *,
        not_in_queue: Sequence[Reallocation] = (),
    ) -> None:
        """`not_in_queue` are moves in place whose new wings are not in Slurm's queue yet."""
        self.snapshot = snapshot
        self._awaited = Counter[str]()
        self._open = {reallocation.id: reallocation for reallocation in open_reallocations}
        self._nodes = snapshot.nodes
        self._unsettled = unsettled_nodes(snapshot)
        self._available = {node.name: node.available for node in snapshot.nodes}
        self._free = {node.name: node.num_gpus - node.used_gpus for node in snapshot.nodes}
        self._reserved_ahead = {node.name: node for node in snapshot.nodes if node.reserved_from is not None}
        held = Counter[str]()
        for job in snapshot.jobs:
            held.update(job.allocation.as_dict())
        self._not_held = {
            node.name: node.num_gpus - min(node.used_gpus, held[node.name]) for node in snapshot.nodes
        }
        in_flight = {reallocation.slurm_job_id for reallocation in open_reallocations}
        self._owned = {
            job.job_id: Counter(job.allocation.as_dict()) for job in snapshot.jobs if job.job_id in in_flight
        }
        self._reserved: dict[int, Counter[str]] = {}
        for reallocation in open_reallocations:
            if reallocation.step in _RESERVING:
                self.reserve(reallocation)
        for reallocation in not_in_queue:
            self._awaited += self._needed(reallocation)

    def is_awaited(self, reallocation: Reallocation) -> bool:
        """Whether GPUs that a move gives up go to wings that do not stand in the queue for them yet."""
        owned = self._owned.get(reallocation.slurm_job_id, Counter())
        return bool(self._awaited & (owned - Counter(reallocation.target.as_dict())))

    def reserve(self, reallocation: Reallocation) -> None:
        """Reserve the GPUs of the target that the job does not own yet."""
        self._reserved[reallocation.id] = self._needed(reallocation)

    def is_free_for(self, reallocation: Reallocation) -> bool:
        """Whether all GPUs of the target that the job does not own yet are free and not reserved."""
        return not self._missing(reallocation)

    def target_is_lost(self, reallocation: Reallocation) -> bool:
        """Whether the target lacks GPUs even after every moving job has left, or meets a reservation.

        Where the job may start at any moment, GPUs in use that no job has are not lost: Slurm shows nodes
        after jobs, and the job itself, or its wing, may have started between the two.
        """
        left = self._not_held if reallocation.step in _STARTING else self._free
        for node, gpus in reallocation.target.gpus_by_node:
            if not self._available.get(node, False) or self._meets_reservation(reallocation, node):
                return True
            leaving = sum(self._owned.get(job_id, Counter())[node] for job_id in self._owned)
            if gpus > left.get(node, 0) + leaving:
                return True
        return False

    def _meets_reservation(self, reallocation: Reallocation, name: str) -> bool:
        """Whether a node has a reservation ahead that the job, started there now, would meet."""
        node, job = self._reserved_ahead.get(name), self.snapshot.job(reallocation.slurm_job_id)
        # A requeued job gets what is left of its time with its shape, and then starts at once.
        if node is None or job is None or reallocation.step is ReallocationStep.REQUEUED:
            return False
        stays = reallocation.way is ReallocationWay.IN_PLACE and not self._needed(reallocation)[name]
        takes = timedelta() if reallocation.step in _RESHAPED else MOVE_TAKES
        return not stays and not job.may_run_on(node, at=self.snapshot.read_at, takes=takes)

    def has_room_for(self, allocation: Allocation, *, own_id: int) -> bool:
        """Whether a job without GPUs could get exactly this now; `own_id` is its own reallocation."""
        free = self._unreserved(own_id)
        return all(
            self._available.get(node, False) and free[node] >= gpus for node, gpus in allocation.gpus_by_node
        )

    def most_on_one_node(self, job: SlurmJob, *, most: int, needs: Needs, own_id: int) -> int:
        """Return how many GPUs, `most` at most, a job without GPUs could get now on one node."""
        room = self._room(job, needs, own_id)
        return min(max(room.values(), default=0), most)

    def best_fit(self, job: SlurmJob, target: Allocation, *, needs: Needs, own_id: int) -> Allocation:
        """Return the allocation nearest to `target` that a job without GPUs could get now.

        It is on the one node with the most free GPUs, or what is free of `target` where that is more. It has
        `target`'s number of GPUs at most, and is empty where nothing is free.
        """
        room = self._room(job, needs, own_id)
        left = Allocation.of({node: min(gpus, room.get(node, 0)) for node, gpus in target.gpus_by_node})
        # Of several such nodes, the one with the fewest GPUs left over.
        node = max(room, key=lambda name: (min(room[name], target.num_gpus), -room[name]), default=None)
        if node is None or min(room[node], target.num_gpus) < left.num_gpus:
            return left
        return Allocation.of({node: min(room[node], target.num_gpus)})

    def _room(self, job: SlurmJob, needs: Needs, own_id: int) -> dict[str, int]:
        """Return how many GPUs the job could have on each node alone, within its CPUs and memory.

        Only nodes on which Slurm would start it are included.
        """
        free = self._unreserved(own_id)
        found = {}
        for node in self._nodes:
            if not node.available or not job.may_run_on(node, needs.required_nodes, at=self.snapshot.read_at):
                continue
            room = min(free[node.name], (node.num_cpus - node.used_cpus) // max(needs.cpus_per_gpu, 1))
            if needs.memory_per_gpu_mb > 0:
                room = min(room, (node.memory_mb - node.used_memory_mb) // needs.memory_per_gpu_mb)
            found[node.name] = max(room, 0)
        return found

    def may_have_leftover(self, ran_on: Allocation) -> bool:
        """Whether a job that `ran_on` these nodes may have leftover processes on one (`returned_nodes`)."""
        return may_have_leftover(ran_on, self._unsettled)

    def type_of(self, node: str) -> str | None:
        """Return the GPU type of a node, None for an unnamed type or an unknown node."""
        return next((entry.gpu_type for entry in self._nodes if entry.name == node), None)

    def may_break_cycle(self, reallocation: Reallocation) -> bool:
        """Whether to start although GPUs are missing, because planned moves wait for each other.

        Two jobs that swap nodes are an example. True for the oldest planned move whose missing GPUs are all
        owned by jobs with planned moves, when no move has started on its nodes. Moves on other nodes are not
        waited for: a job there may not answer for a long time.
        """
        planned = [r for r in self._open.values() if r.step is ReallocationStep.PLANNED and r.moves_running]
        solvable = (r.id for r in planned if not self._shares_nodes(r) and self._is_solvable(r, planned))
        return reallocation.id == min(solvable, default=None)

    def _shares_nodes(self, reallocation: Reallocation) -> bool:
        """Whether a move that has started uses one of its nodes."""
        nodes = _nodes_of(reallocation)
        return any(nodes & _nodes_of(self._open[number]) for number in self._reserved)

    def _is_solvable(self, reallocation: Reallocation, planned: Sequence[Reallocation]) -> bool:
        """Whether the missing GPUs are owned by jobs that are planned to leave them."""
        leaving: Counter[str] = Counter()
        for other in planned:
            if other.id != reallocation.id:
                owned = self._owned.get(other.slurm_job_id, Counter())
                leaving += owned - Counter(other.target.as_dict())
        return not (self._missing(reallocation) - leaving)

    def _needed(self, reallocation: Reallocation) -> Counter[str]:
        owned = self._owned.get(reallocation.slurm_job_id, Counter())
        return Counter(reallocation.target.as_dict()) - owned

    def _missing(self, reallocation: Reallocation) -> Counter[str]:
        return self._needed(reallocation) - self._unreserved(reallocation.id)

    def _unreserved(self, own_id: int) -> Counter[str]:
        """Return the free GPUs by node, minus those reserved for other reallocations."""
        reserved: Counter[str] = Counter()
        for other_id, gpus in self._reserved.items():
            if other_id != own_id:
                reserved += gpus
        return Counter({node: gpus for node, gpus in self._free.items() if gpus > 0}) - reserved


def _nodes_of(reallocation: Reallocation) -> frozenset[str]:
    return frozenset(reallocation.source.nodes) | frozenset(reallocation.target.nodes)
