"""The configurations that a problem's nodes allow: the columns of all tables.

Legend: C columns, T GPU types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.goodput.batch_choice_table import ThroughputKey
from pollux_slurm.model import ProblemJob
from pollux_slurm.policy.problem.allocation_shapes import even_shapes, uneven_shapes
from pollux_slurm.policy.problem.node_facts import NodeFacts

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# CPUs and memory may leave a job only a part of each node's GPUs. These parts are found for the most frequent
# kinds of jobs and of nodes; the most frequent parts may then be used on several nodes, as whole nodes are.
_KINDS_OF_NEED, _PARTS_OF_NODES = 16, 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConfigurationColumns:
    """Configurations as columns: `num_gpus` GPUs of type number `kind` on `num_nodes` nodes.

    `per_node` is the share of each node, 0 where shares may differ. Arrays have shape `(C,)`; `shapes` has
    the same as rows (nodes, share, GPUs, type). `keys` numbers what throughput depends on, (spread, K), and
    `key_of` is the number of each column. `of_kind[t]` marks the columns of type t.
    """

    kind: IntArray
    num_nodes: IntArray
    per_node: IntArray
    num_gpus: IntArray
    shapes: list[tuple[int, int, int, int]]
    keys: dict[tuple[bool, int], int]
    key_of: npt.NDArray[np.intp]
    of_kind: list[BoolArray]


def columns_for(
    facts: NodeFacts, jobs: Sequence[ProblemJob], most: int, *, uneven: bool, pauses: bool
) -> ConfigurationColumns:
    """Return the configurations of at most `most` GPUs that these nodes allow.

    With `uneven`, shares may differ between nodes. With `pauses`, the last column has no GPUs.
    """
    if uneven:
        shapes = [uneven_shapes(sizes, most) for sizes in facts.sizes]
        return facts.cached(
            ("uneven columns", most, pauses), lambda: _made(shapes, uneven=True, pauses=pauses)
        )
    minimums = frozenset([job.min_gpus for job in jobs])
    wanted = minimums.union([job.max_gpus for job in jobs if job.max_gpus is not None])
    needs = Counter([(job.cpus_per_gpu, job.memory_per_gpu_mb) for job in jobs]).most_common(_KINDS_OF_NEED)
    shares = tuple(_parts_left(needs, alike) for alike in facts.nodes_by_capacity)

    def make() -> ConfigurationColumns:
        shapes = [
            even_shapes(sizes, most, wanted, minimums=minimums, shares=parts)
            for sizes, parts in zip(facts.sizes, shares, strict=True)
        ]
        return _made(shapes, uneven=False, pauses=pauses)

    return facts.cached(("columns", most, pauses, minimums, wanted, shares), make)


def _made(shapes: Sequence[Sequence[tuple[int, int]]], *, uneven: bool, pauses: bool) -> ConfigurationColumns:
    """Return the shapes of each GPU type as columns, numbered in their order."""
    rows = [(kind, *shape) for kind, of_kind in enumerate(shapes) for shape in of_kind]
    if pauses:
        rows.append((0, 0, 0))
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    kind, num_nodes, per_node = table[:, 0], table[:, 1], table[:, 2]
    num_gpus = num_nodes * per_node
    if uneven:  # shapes over several nodes are (N, K) then
        num_gpus = np.where(num_nodes > 1, per_node, num_gpus)
        per_node = np.where(num_nodes > 1, 0, per_node)
    keys: dict[ThroughputKey, int] = {}
    listed = list(zip(num_nodes.tolist(), per_node.tolist(), num_gpus.tolist(), kind.tolist(), strict=True))
    key_of = [keys.setdefault((nodes > 1, gpus), len(keys)) for nodes, _, gpus, _ in listed]
    return ConfigurationColumns(
        kind=kind,
        num_nodes=num_nodes,
        per_node=per_node,
        num_gpus=num_gpus,
        shapes=listed,
        keys=keys,
        key_of=np.array(key_of, dtype=np.intp),
        of_kind=[kind == index for index in range(len(shapes))],
    )


def _parts_left(
    needs: Sequence[tuple[tuple[int, int], int]], alike: Counter[tuple[int, int, int]]
) -> tuple[int, ...]:
    """Return the most frequent parts of nodes, in GPUs, that CPUs and memory leave to jobs."""
    shares: Counter[int] = Counter()
    like = alike.most_common(_KINDS_OF_NEED)
    for (cpus, memory_mb), num_jobs in needs:
        for (gpus, of_cpus, of_mb), _ in like:
            share = min(gpus, of_cpus // cpus if cpus else gpus, of_mb // memory_mb if memory_mb else gpus)
            if 0 < share < gpus:
                shares[share] += num_jobs
    return tuple(sorted(share for share, _ in shares.most_common(_PARTS_OF_NODES)))
