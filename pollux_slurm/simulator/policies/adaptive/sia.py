"""Sia (SOSP 2023), implemented from its paper: an integer program chooses one configuration for each job.

Legend: J jobs, C candidate configurations; G of shape `(J, C)` is the goodput normalised by each job's least
one.

Configurations (section 3.2): powers of two within a node, then whole nodes, of each GPU type. A job without
measurements gets the smallest of a type; then at most twice the most GPUs it ever had (section 3.1).
Objective (section 3.3, eq. 1 with p < 0): minimise Σ A·(r·G)^p + λ·Σ (1 − |A_i|), with at most one
configuration per job, and no more GPUs of a type than there are. r (eq. 2) is the restart factor
(T − N·S)/(T + S) for configurations other than the present one. A restarting job keeps its configuration. The
paper's evaluation has p = −0.5 and λ = 1.1.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pollux_slurm.errors import SimulationError
from pollux_slurm.goodput import TableCache
from pollux_slurm.model import BatchChoice, GoodputModel
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.policies.adaptive.agents import Agents

FloatArray = npt.NDArray[np.float64]

POWER = -0.5
NO_ALLOCATION = 1.1
# The least restart factor, so that a negative power of it stays finite.
_MIN_FACTOR = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class SiaConfiguration:
    """`num_gpus` GPUs of one type on `num_nodes` nodes; several nodes are whole nodes."""

    gpu_type: str
    num_nodes: int
    num_gpus: int


class SiaPolicy:
    """The integer program, and the placement of its solution."""

    resizes = True

    def __init__(self, *, power: float = POWER, no_allocation: float = NO_ALLOCATION) -> None:
        if not power < 0 or not no_allocation > 1:
            raise SimulationError("sia minimises: its power must be below 0, λ above 1")
        self._power, self._no_allocation = power, no_allocation
        self._agents, self._tables = Agents(), TableCache()

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return self._agents.choose_batch(job)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        candidates = configurations(cluster)
        if not candidates or not jobs:
            return {}
        current = [_current_candidate(job, candidates, cluster) for job in jobs]
        values = self.normalised_goodput(jobs, candidates, cluster)
        for row, job in enumerate(jobs):
            if job.allocation:
                age_s = now_s - job.job.submitted_s
                moved = np.arange(len(candidates)) != current[row]
                values[row, moved] *= restart_factor(age_s, job.num_restarts or 0, job.expected_delay_s)
        pinned = {row: at for row, at in enumerate(current) if at is not None and jobs[row].in_flight}
        chosen = choose(
            values, candidates, cluster, pinned=pinned, power=self._power, no_allocation=self._no_allocation
        )
        wanted = {jobs[row].job.name: candidates[column] for row, column in chosen.items()}
        kept = {
            jobs[row].job.name: jobs[row].allocation
            for row, column in chosen.items()
            if column == current[row]
        }
        return place(wanted, kept, frozenset(jobs[row].job.name for row in pinned), cluster)

    def normalised_goodput(
        self, jobs: Sequence[SimulatedJob], candidates: Sequence[SiaConfiguration], cluster: Cluster
    ) -> FloatArray:
        """Return G: goodput by job and configuration over the job's least one; 0 where it is not allowed.

        On a GPU type without measurements, goodput is scaled from the job's first measured type, in
        proportion to the types' speeds. Without any measurement, one GPU of each type has 1.
        """
        speeds = {group.gpu_type: group.common_speed for group in cluster.groups} or {
            cluster.gpu_types[0]: 1.0
        }
        self._tables.trim(len(jobs) * len(speeds))
        keys = [(one.num_nodes > 1, one.num_gpus) for one in candidates]
        found = np.zeros((len(jobs), len(candidates)))
        models: list[GoodputModel] = []
        cells: list[tuple[int, str, float]] = []
        for row, job in enumerate(jobs):
            known = dict(self._agents.models(job))
            for kind in speeds:
                source = kind if kind in known else next(iter(known), None)
                if source is not None:
                    models.append(known[source])
                    cells.append((row, kind, speeds[kind] / speeds[source]))
        goodput, _ = self._tables.lookup(models, keys, geometric=True)
        for values, (row, kind, ratio) in zip(goodput, cells, strict=True):
            of_type = np.array([one.gpu_type == kind for one in candidates])
            found[row, of_type] = values[of_type] * ratio
        sizes = np.array([one.num_gpus for one in candidates])
        for row, job in enumerate(jobs):
            if not job.measured.by_type:
                found[row, sizes == 1] = 1.0
                continue
            seen = max(gpus for situations in job.measured.by_type.values() for _, gpus, _ in situations)
            found[row, sizes > min(2 * seen, job.application.most_gpus)] = 0.0
        least = np.min(found, axis=1, initial=np.inf, where=found > 0, keepdims=True)
        return np.where(found > 0, found / least, 0.0)


def restart_factor(age_s: float, num_restarts: int, cost_s: float) -> float:
    """Return r = (T − N·S)/(T + S), above 0; 1 for a job younger than a restart, as in Sia's artifact."""
    if age_s < cost_s:
        return 1.0
    return max((age_s - num_restarts * cost_s) / (age_s + cost_s), _MIN_FACTOR)


def configurations(cluster: Cluster) -> tuple[SiaConfiguration, ...]:
    """Return all configurations of the cluster: powers of two in a node, then whole nodes."""
    found = []
    for kind, (size, available) in _nodes_by_type(cluster).items():
        most = max(available.values(), default=0)
        powers = [1 << power for power in range(most.bit_length())]
        whole = sum(1 for gpus in available.values() if gpus == size)
        if whole and size not in powers:
            powers.append(size)
        shapes = [(1, gpus) for gpus in powers]
        shapes += [(num_nodes, num_nodes * size) for num_nodes in range(2, whole + 1)]
        found += [SiaConfiguration(gpu_type=kind, num_nodes=n, num_gpus=gpus) for n, gpus in shapes]
    return tuple(found)


def choose(
    values: FloatArray,
    candidates: Sequence[SiaConfiguration],
    cluster: Cluster,
    *,
    pinned: Mapping[int, int],
    power: float = POWER,
    no_allocation: float = NO_ALLOCATION,
) -> dict[int, int]:
    """Solve the integer program; return the column of each served job's configuration, by row.

    `values` of shape `(J, C)` are r·G, 0 where a configuration is not allowed. `pinned` jobs keep theirs.
    Raises `SimulationError` if there is no solution.
    """
    # Imported here because the other policies do not need it, and it takes long.
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    rows, columns = np.nonzero(values > 0)
    if not len(rows):
        return {}
    cell_candidates = [candidates[column] for column in columns.tolist()]
    # Rounded to four digits, HiGHS needs less time. (Sia's artifact rounds to two.)
    cost = np.round(values[rows, columns] ** power - no_allocation, 4)
    nodes = _nodes_by_type(cluster)
    limits: list[float] = [1.0] * len(values)
    parts = [(rows, np.arange(len(rows)), np.ones(len(rows)))]
    for kind, (size, available) in nodes.items():
        of_type = np.array([one.gpu_type == kind for one in cell_candidates])
        gpus = np.array([one.num_gpus for one in cell_candidates], dtype=np.float64)
        whole = of_type & (gpus >= size)
        for used, limit in (
            (gpus * of_type, sum(available.values())),
            (gpus / size * whole, sum(1 for free in available.values() if free == size)),
        ):
            parts.append((np.full(len(rows), len(limits)), np.arange(len(rows)), used))
            limits.append(float(limit))
    index, variable, value = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    matrix = csr_array((value, (index, variable)), shape=(len(limits), len(rows)))
    low = np.array([pinned.get(row) == at for row, at in zip(rows.tolist(), columns.tolist(), strict=True)])
    with _suppressed_stdout():
        solution = milp(
            cost,
            integrality=np.ones(len(rows), dtype=np.int64),
            bounds=Bounds(low.astype(np.float64), 1.0),
            constraints=LinearConstraint(matrix, ub=np.array(limits)),
        )
    if solution.x is None:
        raise SimulationError(
            f"sia's integer program of {len(values)} jobs has no solution: {solution.message}"
        )
    taken = np.flatnonzero(solution.x > 0.5)
    return {int(rows[at]): int(columns[at]) for at in taken}


@contextlib.contextmanager
def _suppressed_stdout() -> Iterator[None]:
    """Discard the lines that HiGHS (scipy 1.17) sometimes writes to standard output, which may be JSON."""
    try:
        kept = os.dup(1)
    except OSError:  # standard output is closed
        yield
        return
    try:
        with Path(os.devnull).open("wb") as nothing:
            sys.stdout.flush()
            os.dup2(nothing.fileno(), 1)
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def place(
    wanted: Mapping[str, SiaConfiguration],
    kept: Mapping[str, GpusByNode],
    pinned: frozenset[str],
    cluster: Cluster,
) -> dict[str, GpusByNode]:
    """Place all `wanted`, the largest first; `kept` jobs stay unless a larger one needs their node.

    Powers of two always fit on free nodes with a power of two of GPUs. A job that does not fit gets nothing.
    """
    placed = dict(kept)
    free = list(cluster.node_gpus)
    for allocation in kept.values():
        for node, gpus in allocation:
            free[node] -= gpus
    queue = sorted((name for name in wanted if name not in kept), key=lambda name: -wanted[name].num_gpus)
    while queue:
        name = queue.pop(0)
        shape = wanted[name]
        evictable = {
            other: allocation[0]
            for other, allocation in placed.items()
            if len(allocation) == 1 and other not in pinned and allocation[0][1] < shape.num_gpus
        }
        nodes = _find_nodes(shape, free, evictable, cluster)
        if nodes is None:
            continue
        share = shape.num_gpus // shape.num_nodes
        for node in nodes:
            for other in sorted(evictable, key=lambda other: evictable[other][1]):
                if free[node] < share and evictable[other][0] == node:
                    free[node] += evictable.pop(other)[1]
                    del placed[other]
                    queue.append(other)
            free[node] -= share
        queue.sort(key=lambda name: -wanted[name].num_gpus)
        placed[name] = tuple((node, share) for node in sorted(nodes))
    return placed


def _find_nodes(
    shape: SiaConfiguration, free: Sequence[int], evictable: Mapping[str, tuple[int, int]], cluster: Cluster
) -> list[int] | None:
    """Return the nodes that fit best: the fewest GPUs to evict, then the fewest left over."""
    share = shape.num_gpus // shape.num_nodes
    could = list(free)
    for node, gpus in evictable.values():
        could[node] += gpus
    fitting = [
        node
        for node, kind in enumerate(cluster.node_types)
        if kind == shape.gpu_type and could[node] >= share
    ]
    fitting.sort(key=lambda node: (max(share - free[node], 0), free[node]))
    return fitting[: shape.num_nodes] if len(fitting) >= shape.num_nodes else None


def _nodes_by_type(cluster: Cluster) -> dict[str, tuple[int, dict[int, int]]]:
    """Return for each GPU type the size of a whole node, and the available GPUs of each node."""
    sizes: dict[str, int] = {}
    available: dict[str, dict[int, int]] = {kind: {} for kind in cluster.gpu_types}
    for node, (group, gpus) in enumerate(zip(cluster.node_groups, cluster.node_gpus, strict=True)):
        sizes[group.gpu_type] = max(sizes.get(group.gpu_type, 0), group.gpus_per_node)
        available[group.gpu_type][node] = gpus
    return {kind: (sizes[kind], available[kind]) for kind in cluster.gpu_types}


def _current_candidate(
    job: SimulatedJob, candidates: Sequence[SiaConfiguration], cluster: Cluster
) -> int | None:
    """Return the index of a job's present configuration; None if it is none of `candidates`."""
    types = cluster.node_types
    for index, one in enumerate(candidates):
        if (
            job.allocation
            and (one.num_nodes, one.num_gpus) == (len(job.allocation), job.num_gpus)
            and one.gpu_type == types[job.allocation[0][0]]
        ):
            return index
    return None
