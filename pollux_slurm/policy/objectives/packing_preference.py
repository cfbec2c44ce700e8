"""Configurations that pack well on nodes: few sizes need few moves and leave usable GPUs to other jobs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Problem, ProblemJob
from pollux_slurm.policy.problem.allocation_shapes import gpu_bounds
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables

BoolArray = npt.NDArray[np.bool_]


def packing_columns(problem: Problem, jobs: Sequence[ProblemJob], tables: SpeedupTables) -> BoolArray:
    """Return the columns, (J, C), whose shares of nodes pack well.

    These are parts of a node of which several make a whole one, and whole nodes. A job's own bounds are
    allowed as well, and all columns where a job has none of these.
    """
    sizes: list[set[int]] = [set() for _ in tables.kinds]
    for node in problem.nodes:
        if node.num_gpus > 0:
            sizes[tables.kind_of_node[node.name]].add(node.num_gpus)
    packs = np.array(
        [
            (
                share in sizes[kind]
                if nodes > 1
                else gpus == 0 or any(size % gpus == 0 for size in sizes[kind])
            )
            for kind, nodes, share, gpus in zip(
                tables.kind.tolist(),
                tables.num_nodes.tolist(),
                tables.per_node.tolist(),
                tables.num_gpus.tolist(),
                strict=True,
            )
        ],
        dtype=bool,
    )
    low, most = gpu_bounds(jobs)
    gpus = tables.num_gpus[None, :]
    usable = packs | (gpus == low) | (gpus == most)
    within = (gpus >= low) & (gpus <= np.minimum(most, tables.caps[:, None])) & (tables.speedup > 0)
    found: BoolArray = usable | ~np.any(usable & within, axis=1, keepdims=True)
    return found
