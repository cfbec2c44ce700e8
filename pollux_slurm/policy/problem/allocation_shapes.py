"""The shapes in which a job can be given GPUs of one type: N nodes, and k GPUs on each or K in all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import ProblemJob

IntArray = npt.NDArray[np.int64]

# Up to this many nodes every equal share of a node is allowed; beyond, whole nodes only.
MAX_NODES_SPLIT = 8
# In a cluster of more nodes than this, several nodes are whole ones: shares of them would hardly be missed.
MANY_NODES = 64
# Up to this many whole nodes every number is allowed; beyond, every 32nd part more.
_EVERY_COUNT = 64
# The maximum of a job that names none.
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
    """Return (N, k): every count up to a node, then equal counts over several, up to `most` GPUs.

    `sizes` are the nodes' GPUs, the largest first. Counts that are `wanted` are there on as few nodes as can
    be, `minimums` on every number of nodes, and `shares` count as whole nodes.
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
        # The bounds that jobs name themselves, on as few nodes as equal shares allow.
        for count in range(1, min(len(sizes), gpus) + 1):
            if gpus <= most and gpus % count == 0 and gpus // count <= sizes[count - 1]:
                found[count, gpus // count] = None
                break
    for gpus in sorted(minimums):
        # Whoever can have less of a node than there is, by others on it, CPUs or memory, is to be served all
        # the same.
        for share in range(1, sizes[0] + 1):
            count = gpus // share
            if gpus <= most and gpus % share == 0 and count <= len(sizes) and share <= sizes[count - 1]:
                found[count, share] = None
    return list(found)


def uneven_shapes(sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return (1, k) on one node and (N, K) on several, N the fewest nodes that hold K."""
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
