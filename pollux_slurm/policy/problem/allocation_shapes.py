"""The shapes of allocations of one GPU type: N nodes with k GPUs on each, or K in all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import ProblemJob

IntArray = npt.NDArray[np.int64]

# Allocations of at most this many nodes may use parts of nodes; larger ones use whole nodes.
MAX_NODES_SPLIT = 8
# In a cluster of more nodes than this, allocations of several nodes use whole nodes: parts gain little there.
MANY_NODES = 64
# Every number of whole nodes up to this one is a shape; beyond it, numbers grow by a 32nd.
_EVERY_COUNT = 64
# The maximum of a job without one.
_UNBOUNDED = 10**9


def gpu_bounds(jobs: Sequence[ProblemJob]) -> tuple[IntArray, IntArray]:
    """Return the fewest and the most GPUs that each job may ever have, each of shape `(J, 1)`."""
    fewest = np.array([job.min_gpus for job in jobs], dtype=np.int64)
    most = np.array([_UNBOUNDED if job.max_gpus is None else job.max_gpus for job in jobs], dtype=np.int64)
    return fewest[:, None], most[:, None]


def even_shapes(
    sizes: Sequence[int],
    most: int,
    wanted: Iterable[int],
    *,
    minimums: Iterable[int] = (),
    shares: Iterable[int] = (),
) -> list[tuple[int, int]]:
    """Return shapes (N, k) with equal shares: k GPUs on each of N nodes, at most `most` GPUs in all.

    `sizes` are the GPUs of each node, the largest first. The result has a shape for each GPU count in
    `wanted` on as few nodes as possible, and for each in `minimums` on every possible number of nodes.
    `shares` are parts of nodes that count as whole nodes. Shapes are sorted by nodes: the first of several of
    equal value is chosen.
    """
    if not sizes:
        return []
    found = {(1, k): None for k in range(1, sizes[0] + 1) if k <= most}
    whole = sorted({*sizes, *shares})
    split = MAX_NODES_SPLIT if len(sizes) <= MANY_NODES else 1
    num_nodes = 2
    while num_nodes <= min(len(sizes), most):
        shares = range(1, sizes[0] + 1) if num_nodes <= split else whole
        for k in shares:
            if k <= sizes[num_nodes - 1] and num_nodes * k <= most:
                found[num_nodes, k] = None
        num_nodes += max(num_nodes // 32, 1) if num_nodes >= _EVERY_COUNT else 1
    for gpus in sorted(wanted):
        # The bounds of jobs, on as few nodes as equal shares allow.
        for count in range(1, min(len(sizes), gpus) + 1):
            if gpus <= most and gpus % count == 0 and gpus // count <= sizes[count - 1]:
                found[count, gpus // count] = None
                break
    for gpus in sorted(minimums):
        # Other jobs, CPUs or memory may leave only a part of each node: a minimum must fit there, too.
        for share in range(1, sizes[0] + 1):
            count = gpus // share
            if gpus <= most and gpus % share == 0 and count <= len(sizes) and share <= sizes[count - 1]:
                found[count, share] = None
    return sorted(found)


def uneven_shapes(sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return shapes (1, k) on one node and (N, K) on several, with the fewest nodes N that have K GPUs."""
    if not sizes:
        return []
    found = [(1, k) for k in range(1, sizes[0] + 1) if k <= most]
    room, num_nodes = sizes[0], 1
    for gpus in range(2, min(sum(sizes), most) + 1 if len(sizes) > 1 else 0):
        while gpus > room:
            room += sizes[num_nodes]
            num_nodes += 1
        found.append((max(num_nodes, 2), gpus))
    return found
