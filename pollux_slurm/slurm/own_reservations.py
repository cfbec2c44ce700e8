"""A client that knows the daemon's own reservations: their nodes are as available as without them.

A reservation of ours lasts for seconds, while one job moves (`pollux_slurm.daemon.enact.kept_places`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pollux_slurm.model import ClusterSnapshot, SlurmNode
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.parsing.node_json import is_available


class OwnReservations:
    """A `SlurmClient`; `nodes_of` are the nodes of each reservation that it has made, by name."""

    def __init__(self, inner: SlurmClient, nodes_of: dict[str, tuple[str, ...]] | None = None) -> None:
        self._inner = inner
        self._nodes_of = {} if nodes_of is None else nodes_of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def guarded(self, guard: Callable[[], None]) -> OwnReservations:
        return OwnReservations(self._inner.guarded(guard), self._nodes_of)

    def snapshot(self) -> ClusterSnapshot:
        return self._shown(self._inner.snapshot())

    def refresh(self, job_ids: Collection[str] | None = None) -> ClusterSnapshot:
        return self._shown(self._inner.refresh(job_ids))

    def _shown(self, shown: ClusterSnapshot) -> ClusterSnapshot:
        ours = {node for nodes in self._nodes_of.values() for node in nodes}
        if not ours:
            return shown
        nodes = tuple(_without_reservation(node) if node.name in ours else node for node in shown.nodes)
        return dataclasses.replace(shown, nodes=nodes)

    def create_reservation(self, name: str, nodes: Sequence[str], *, minutes: int) -> None:
        self._nodes_of[name] = tuple(nodes)  # before the command: it may have taken effect without an answer
        self._inner.create_reservation(name, nodes, minutes=minutes)

    def delete_reservation(self, name: str) -> None:
        # Whatever Slurm answers: it ends by itself, and another one of these nodes may be a person's.
        self._nodes_of.pop(name, None)
        self._inner.delete_reservation(name)


def _without_reservation(node: SlurmNode) -> SlurmNode:
    states = [word for word in node.state.upper().split("+") if word != "RESERVED"]
    return dataclasses.replace(
        node, available=node.available or (node.gres_problem is None and is_available(states))
    )
