"""Which GPUs a reallocation still waits for: free ones, those others leave, and those others took. Pure
but for the reservations made within one tick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pollux_slurm.daemon.observe.returned_nodes import may_have_leftover, unsettled_nodes
from pollux_slurm.model import Allocation, ClusterSnapshot, ReallocationStep, SlurmJob
from pollux_slurm.store.contract.interface import Reallocation

_NOT_BEGUN = (ReallocationStep.PLANNED,)
# From here until the job runs in its target, its target's GPUs are spoken for.
_IN_MOTION = (
    ReallocationStep.CHECKPOINT_REQUESTED,
    ReallocationStep.CHECKPOINTED,
    ReallocationStep.REQUEUED,
    ReallocationStep.RESHAPED,
    ReallocationStep.RELEASED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a job needs of a node with each of its GPUs (invariant 11), and the node that its owner named."""

    cpus_per_gpu: int = 1
    memory_per_gpu_mb: int = 0
    named: tuple[str, ...] = ()


class GpuBook:
    """The GPUs of each node in one tick: in use, held by each job in flight, and reserved for it."""

    def __init__(self, snapshot: ClusterSnapshot, open_reallocations: Sequence[Reallocation]) -> None:
        self._open = {reallocation.id: reallocation for reallocation in open_reallocations}
        self._nodes = snapshot.nodes
        self._unsettled = unsettled_nodes(snapshot)
        self._available = {node.name: node.available for node in snapshot.nodes}
        self._free = {node.name: node.num_gpus - node.used_gpus for node in snapshot.nodes}
        in_flight = {reallocation.slurm_job_id for reallocation in open_reallocations}
        self._held = {
            job.job_id: Counter(job.allocation.as_dict()) for job in snapshot.jobs if job.job_id in in_flight
        }
        self._reserved: dict[int, Counter[str]] = {}
        for reallocation in open_reallocations:
            if reallocation.step in _IN_MOTION:
                self.reserve(reallocation)

    @classmethod
    def of(cls, snapshot: ClusterSnapshot, open_reallocations: Sequence[Reallocation]) -> GpuBook:
        return cls(snapshot, open_reallocations)

    def reserve(self, reallocation: Reallocation) -> None:
        """Speak for the GPUs of the target that the job does not hold yet."""
        self._reserved[reallocation.id] = self._needed(reallocation)

    def is_free_for(self, reallocation: Reallocation) -> bool:
        """Whether all that the target needs beyond what the job holds is free and spoken for by nobody."""
        return not self._missing(reallocation)

    def lost_to_neighbours(self, reallocation: Reallocation) -> bool:
        """Whether the target can no longer be had, even when every job in flight has left."""
        for node, gpus in reallocation.target.gpus_by_node:
            if not self._available.get(node, False):
                return True
            leaving = sum(self._held.get(job_id, Counter())[node] for job_id in self._held)
            if gpus > self._free.get(node, 0) + leaving:
                return True
        return False

    def has_room_for(self, allocation: Allocation, *, but_for: int) -> bool:
        """Whether a job that holds nothing would get exactly this now; `but_for` is its own reallocation."""
        free = self._unreserved(but_for)
        return all(
            self._available.get(node, False) and free[node] >= gpus for node, gpus in allocation.gpus_by_node
        )

    def most_on_one_node(self, job: SlurmJob, *, most: int, needs: Needs, but_for: int) -> int:
        """Return how many GPUs, at the most `most`, a job that holds nothing would get now on one node."""
        room = self._room(job, needs, but_for)
        return min(max(room.values(), default=0), most)

    def best_fit(self, job: SlurmJob, target: Allocation, *, needs: Needs, but_for: int) -> Allocation:
        """Return what comes nearest to `target` of what a job that holds nothing would get now.

        It is the one node with the most GPUs, or what is left of `target` where that is more; never more GPUs
        than `target` has, and none at all where nothing is free.
        """
        room = self._room(job, needs, but_for)
        left = Allocation.of({node: min(gpus, room.get(node, 0)) for node, gpus in target.gpus_by_node})
        # Of several nodes the one that it fills best.
        node = max(room, key=lambda name: (min(room[name], target.num_gpus), -room[name]), default=None)
        if node is None or min(room[node], target.num_gpus) < left.num_gpus:
            return left
        return Allocation.of({node: min(room[node], target.num_gpus)})

    def _room(self, job: SlurmJob, needs: Needs, but_for: int) -> dict[str, int]:
        """Return how many GPUs the job could have on each node alone.

        Nodes on which Slurm would start it count, and what CPUs and memory allow.
        """
        free = self._unreserved(but_for)
        found = {}
        for node in self._nodes:
            if not node.available or not job.may_run_on(node, needs.named):
                continue
            room = min(free[node.name], (node.num_cpus - node.used_cpus) // max(needs.cpus_per_gpu, 1))
            if needs.memory_per_gpu_mb > 0:
                room = min(room, (node.memory_mb - node.used_memory_mb) // needs.memory_per_gpu_mb)
            found[node.name] = max(room, 0)
        return found

    def may_have_leftover(self, place: Allocation) -> bool:
        """Whether processes of a job that ran there may still run on a node that is lost, or just back."""
        return may_have_leftover(place, self._unsettled)

    def type_of(self, node: str) -> str | None:
        """Return the type of a node's GPUs, None for a nameless one or an unknown node."""
        return next((entry.gpu_type for entry in self._nodes if entry.name == node), None)

    def may_break_cycle(self, reallocation: Reallocation) -> bool:
        """Whether to start although GPUs are missing, since otherwise all would wait for each other.

        True for the oldest planned reallocation of those whose jobs hold what the others miss, two jobs that
        swap places, for one, when nothing is in motion on its nodes. What is in motion elsewhere, perhaps
        for as long as a job does not answer, is not waited for.
        """
        planned = [r for r in self._open.values() if r.step in _NOT_BEGUN and r.moves_running]
        may = (r.id for r in planned if not self._is_near_motion(r) and self._is_solvable(r, planned))
        return reallocation.id == min(may, default=None)

    def _is_near_motion(self, reallocation: Reallocation) -> bool:
        nodes = _nodes_of(reallocation)
        return any(nodes & _nodes_of(self._open[number]) for number in self._reserved)

    def _is_solvable(self, reallocation: Reallocation, planned: Sequence[Reallocation]) -> bool:
        """Whether what a reallocation misses is held by jobs that are planned to leave it."""
        leaving: Counter[str] = Counter()
        for other in planned:
            if other.id != reallocation.id:
                held = self._held.get(other.slurm_job_id, Counter())
                leaving += held - Counter(other.target.as_dict())
        return not (self._missing(reallocation) - leaving)

    def _needed(self, reallocation: Reallocation) -> Counter[str]:
        held = self._held.get(reallocation.slurm_job_id, Counter())
        return Counter(reallocation.target.as_dict()) - held

    def _missing(self, reallocation: Reallocation) -> Counter[str]:
        return self._needed(reallocation) - self._unreserved(reallocation.id)

    def _unreserved(self, but_for: int) -> Counter[str]:
        """Return the free GPUs by node that no reallocation but this one has spoken for."""
        reserved: Counter[str] = Counter()
        for other_id, gpus in self._reserved.items():
            if other_id != but_for:
                reserved += gpus
        return Counter({node: gpus for node, gpus in self._free.items() if gpus > 0}) - reserved


def _nodes_of(reallocation: Reallocation) -> frozenset[str]:
    return frozenset(reallocation.source.nodes) | frozenset(reallocation.target.nodes)
