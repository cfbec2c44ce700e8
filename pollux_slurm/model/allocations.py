"""Allocations: the GPUs of one job, by node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """`num_gpus` GPUs (K) on `num_nodes` nodes (N), whichever nodes these are."""

    num_nodes: int
    num_gpus: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """GPUs per node for one job: (node name, GPUs) pairs sorted by name, each with at least one GPU."""

    gpus_by_node: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, gpus_by_node: Mapping[str, int]) -> Allocation:
        """Return the canonical allocation: sorted, nodes without GPUs dropped."""
        if any(gpus < 0 for gpus in gpus_by_node.values()):
            raise ValueError(f"negative GPU count in {dict(gpus_by_node)}")
        return cls(tuple(sorted((node, int(gpus)) for node, gpus in gpus_by_node.items() if gpus > 0)))

    def __bool__(self) -> bool:
        return bool(self.gpus_by_node)

    def __str__(self) -> str:
        return "+".join(f"{node}:{gpus}" for node, gpus in self.gpus_by_node) or "none"

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node for node, _ in self.gpus_by_node)

    @property
    def num_nodes(self) -> int:
        return len(self.gpus_by_node)

    @property
    def num_gpus(self) -> int:
        # Called tens of thousands of times in a simulation: a sum over a generator takes twice as long.
        total = 0
        for _, gpus in self.gpus_by_node:
            total += gpus
        return total

    @property
    def configuration(self) -> Configuration:
        return Configuration(num_nodes=self.num_nodes, num_gpus=self.num_gpus)

    def as_dict(self) -> dict[str, int]:
        return dict(self.gpus_by_node)
