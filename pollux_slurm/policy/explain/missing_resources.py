"""Which resource keeps a job from GPUs that are free: CPUs, memory, or nodes that are large enough.

Legend: C columns, n nodes, T GPU types. Needs and what is left of a node are (GPUs, CPUs, MB of memory).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Problem, ProblemJob
from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.placed_state import State
from pollux_slurm.policy.candidates.shared_resources import Need, fitting
from pollux_slurm.policy.problem.node_sets import NodeSet, members_of, need

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_GPUS, _GPUS_AND_CPUS, _ALL = (0,), (0, 1), (0, 1, 2)


def find_unplaceable(problem: Problem, candidates: Candidates) -> dict[str, str]:
    """Return the reasons, by job id, why waiting jobs would not fit even if all nodes were empty and open."""
    waiting = [
        row for row, waits in enumerate(candidates.waits.tolist()) if waits and not candidates.settled[row]
    ]
    if not waiting or not problem.nodes:
        return {}
    nodes, tables = problem.nodes, candidates.tables
    size = np.array([(one.num_gpus, one.num_cpus, one.memory_mb) for one in nodes], dtype=np.int64)
    kind_of = np.array([tables.kind_of_node[one.name] for one in nodes], dtype=np.int64)
    # What every node has for each of its GPUs, at least.
    least_per_gpu = (size // np.maximum(size[:, :1], 1))[size[:, 0] > 0].min(axis=0, initial=2**62)
    index = {one.name: number for number, one in enumerate(nodes)}
    known: dict[tuple[frozenset[str] | None, Need], list[BoolArray]] = {}
    found = {}
    for row in waiting:
        job, of_job = candidates.jobs[row], need(candidates.jobs[row])
        if job.partition_nodes is None and (least_per_gpu >= of_job).all():
            continue
        key = (job.partition_nodes, of_job)
        if key not in known:
            usable = np.full(len(nodes), job.partition_nodes is None)
            usable[[index[name] for name in job.partition_nodes or () if name in index]] = True
            known[key] = [
                fitting(tables, size, kind_of, usable, of_job, counted)
                for counted in (_GPUS, _GPUS_AND_CPUS, _ALL)
            ]
        allowed = candidates.allowed[row]
        fits = [bool((allowed & columns).any()) for columns in known[key]]
        if not fits[2]:
            found[job.job_id] = _reason(job, *fits[:2])
    return found


def _reason(job: ProblemJob, gpus: bool, cpus: bool) -> str:
    if not gpus:
        return "the nodes that it may use are too small for its GPUs, even if all were free"
    if not cpus:
        return f"no nodes that it may use have {job.cpus_per_gpu} CPUs for each of its GPUs"
    return f"no nodes that it may use have {job.memory_per_gpu_mb} MB of memory for each of its GPUs"


class Shortage:
    """Shortages of CPUs and memory in a placed state."""

    def __init__(self, state: State, candidates: Candidates) -> None:
        self._state, self._candidates = state, candidates
        self._left: IntArray | None = None
        self._possible: dict[tuple[NodeSet, Need], BoolArray] = {}
        self._num_wide = np.zeros(len(state.cluster.names), dtype=np.int64)

    def possible(self, job: int) -> BoolArray:
        """Return the columns, (C,), that a job could have if the nodes that it may use were empty."""
        of_job, capacity = need(self._candidates.jobs[job]), self._state.cluster.capacity
        key = (self._state.eligible[job], of_job)
        if key not in self._possible:
            usable, kind_of = self._usable(job), self._state.cluster.kind
            self._possible[key] = fitting(self._candidates.tables, capacity, kind_of, usable, of_job, _ALL)
        return self._possible[key]

    def in_general(self, job: int, columns: BoolArray) -> str | None:
        """Return "cpus" or "memory" if it keeps a job from all of `columns`, (C,), even on empty nodes."""
        if not self._state.cluster.is_tight:
            return None
        return self._missing(job, columns, self._state.cluster.capacity, self._usable(job))

    def now(self, job: int, columns: BoolArray) -> str | None:
        """Return "cpus" or "memory" if it keeps a job from all of `columns`, (C,), though GPUs are free."""
        state = self._state
        if not state.cluster.is_tight:
            return None
        if self._left is None:
            self._left = self._count()
        own = state.at(job)
        left, num_wide = self._left.copy(), self._num_wide.copy()
        for node, gpus in own.gpus:
            left[node] += gpus * np.array(need(self._candidates.jobs[job]), dtype=np.int64)
            num_wide[node] -= len(own.gpus) > 1
        usable = self._usable(job)
        single = self._candidates.tables.num_nodes <= 1
        return self._missing(job, columns & single, left, usable) or self._missing(
            job, columns & ~single, left, usable & (num_wide == 0)
        )

    def _usable(self, job: int) -> BoolArray:
        usable = np.zeros(len(self._state.cluster.names), dtype=bool)
        usable[list(members_of(self._state.eligible[job]))] = True
        return usable

    def _count(self) -> IntArray:
        """Return what is left of each node, (n, 3), and count the jobs over several nodes on it."""
        left: IntArray = self._state.cluster.capacity.copy()
        for job, placed in zip(self._candidates.all_jobs, self._state.placed, strict=True):
            for node, gpus in placed.gpus if placed is not None else ():
                left[node] -= gpus * np.array(need(job), dtype=np.int64)
                self._num_wide[node] += len(placed.gpus) > 1 if placed is not None else 0
        return left

    def _missing(self, job: int, columns: BoolArray, left: IntArray, usable: BoolArray) -> str | None:
        tables, of_job = self._candidates.tables, need(self._candidates.jobs[job])
        gpus, cpus, everything = (
            bool((columns & fitting(tables, left, self._state.cluster.kind, usable, of_job, counted)).any())
            for counted in (_GPUS, _GPUS_AND_CPUS, _ALL)
        )
        if everything or not gpus:
            return None
        return "memory" if cpus else "cpus"
