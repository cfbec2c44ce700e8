"""What the nodes of a problem say by themselves, whoever is on them: kept, for they seldom change.

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

# So many answers are kept for the same nodes: jobs come and go, and with them the bounds of what is asked.
_MOST_KEPT = 256


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
    """The nodes of a problem that passed its checks. It and its arrays are not to be changed.

    `kinds` (T,) are the GPU types that nodes have, in order, `kind` (n,) each node's, `capacity` (n, 3) its
    GPUs, CPUs and MB of memory. `sizes` are the GPUs of each type's nodes, the largest first, and `alike` how
    many nodes of each type have the same capacity.
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
        self.alike = [
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
        # What every node has of CPUs and memory for each of its GPUs.
        with_gpus = [row for row in self.rows if row[0] > 0]
        self.for_each = tuple(
            min((row[part] // row[0] for row in with_gpus), default=2**62) for part in (1, 2)
        )
        self._kept: dict[tuple[object, ...], object] = {}

    def cached(self, asked: tuple[object, ...], make: Callable[[], T]) -> T:
        """Return what was `asked` of these nodes, made only where it is not known.

        What is asked begins with its name, and tells all else that what is made depends on.
        """
        found = self._kept.get(asked)
        if found is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            found = self._kept[asked] = make()
        return cast(T, found)


class NodeFactsCache:
    """What was found out about the nodes of the last problem, for the next one that has the same nodes."""

    def __init__(self) -> None:
        self._last: NodeFacts | None = None

    def __contains__(self, nodes: object) -> bool:
        """Tell whether these very nodes, not only some that equal them, are those of the last problem."""
        return self._last is not None and self._last.nodes is nodes

    def of(self, nodes: tuple[NodeCapacity, ...]) -> NodeFacts:
        """Return what these nodes say; they have passed the checks of a problem."""
        last = self._last
        if last is None or (last.nodes is not nodes and last.nodes != nodes):
            self._last = last = NodeFacts(nodes)
        return last


def at_least(capacity: IntArray) -> list[NodeSet]:
    """Return the nodes of at least k GPUs, for k from 0 to one more than any has."""
    gpus = capacity[:, 0]
    return [node_set(np.flatnonzero(gpus >= k).tolist()) for k in range(int(gpus.max(initial=0)) + 2)]
