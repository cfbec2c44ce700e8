"""What follows from a problem's nodes alone, cached between problems: nodes seldom change.

Legend: n nodes, in the problem's order; T GPU types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import NodeCapacity

IntArray = npt.NDArray[np.int64]
# A set of nodes is an integer whose bit i stands for node i.
NodeSet = int

T = TypeVar("T")

# At most so many results are cached for the same nodes: they also depend on bounds of jobs, which change.
_MAX_CACHED = 256


def node_set(nodes: Iterable[int]) -> NodeSet:
    """Return the set of these node indices."""
    found = 0
    for node in nodes:
        found |= 1 << node
    return found


def members_of(nodes: NodeSet) -> Iterator[int]:
    """Yield the node indices in a set, in order."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest


class NodeFacts:
    """The nodes of a checked problem as arrays and sets. Nobody may change it or its arrays.

    `kinds` (T,) are the GPU types of nodes, sorted; `kind` (n,) is the number of each node's type, and
    `capacity` (n, 3) its GPUs, CPUs and MB of memory. For each type, `sizes` has the GPUs of its nodes, the
    largest first, and `nodes_by_capacity` counts its nodes of each capacity. `accepting` are the nodes that
    accept new jobs, `of_kind` those of each type, `at_least[k]` those with k GPUs or more. `least_per_gpu`
    is how many CPUs and MB of memory every node has for each of its GPUs, at least.
    """

    def __init__(self, nodes: Sequence[NodeCapacity]) -> None:
        self.nodes = tuple(nodes)
        self.names = [node.name for node in nodes]
        self.index = {name: position for position, name in enumerate(self.names)}
        types = [node.gpu_type or "" for node in nodes]
        sizes: dict[str, list[int]] = {}
        for node, kind in zip(nodes, types, strict=True):
            if node.num_gpus > 0:
                sizes.setdefault(kind, []).append(node.num_gpus)
        self.kinds = tuple(sorted(sizes)) or ("",)
        self.sizes = [sorted(sizes.get(kind, ()), reverse=True) for kind in self.kinds]
        self.num_gpus = sum(map(sum, self.sizes))
        number = {kind: index for index, kind in enumerate(self.kinds)}
        kind_of = [number.get(kind, 0) for kind in types]
        self.kind = np.array(kind_of, dtype=np.int64)
        self.kind_of_node = dict(zip(self.names, kind_of, strict=True))
        self.rows = [(node.num_gpus, node.num_cpus, node.memory_mb) for node in nodes]
        self.capacity = np.array(self.rows, dtype=np.int64).reshape(-1, 3)
        self.nodes_by_capacity = [
            Counter(row for row, kind in zip(self.rows, types, strict=True) if kind == of)
            for of in self.kinds
        ]
        self.accepting = node_set(number for number, node in enumerate(nodes) if node.accepts_new)
        self.of_kind = [
            node_set(np.flatnonzero(self.kind == kind).tolist()) for kind in range(len(self.kinds))
        ]
        self.at_least, self.max_gpus_per_node = (
            at_least(self.capacity),
            int(self.capacity[:, 0].max(initial=0)),
        )
        with_gpus = [row for row in self.rows if row[0] > 0]
        self.least_per_gpu = tuple(
            min((row[part] // row[0] for row in with_gpus), default=2**62) for part in (1, 2)
        )
        self._cached: dict[tuple[object, ...], object] = {}

    def cached(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """Return the cached result under `key`, or make and cache it.

        A key begins with the result's name and contains all that the result depends on beside the nodes.
        """
        found = self._cached.get(key)
        if found is None:
            if len(self._cached) >= _MAX_CACHED:
                self._cached.clear()
            found = self._cached[key] = make()
        return cast(T, found)


class NodeFactsCache:
    """Keeps the `NodeFacts` of the last problem for the next one with the same nodes."""

    def __init__(self) -> None:
        self._last: NodeFacts | None = None

    def __contains__(self, nodes: object) -> bool:
        """Return whether the last problem had this very object as its nodes, not only an equal one."""
        return self._last is not None and self._last.nodes is nodes

    def of(self, nodes: tuple[NodeCapacity, ...]) -> NodeFacts:
        """Return the facts of these nodes, which must have passed the checks of a problem."""
        last = self._last
        if last is None or (last.nodes is not nodes and last.nodes != nodes):
            self._last = last = NodeFacts(nodes)
        return last


def at_least(capacity: IntArray) -> list[NodeSet]:
    """Return the set of nodes with at least k GPUs, for k from 0 to one more than the largest node has."""
    gpus = capacity[:, 0]
    return [node_set(np.flatnonzero(gpus >= k).tolist()) for k in range(int(gpus.max(initial=0)) + 2)]
