"""Wings: the jobs of Slurm that together have the GPUs of one job that moves in place.

Slurm cannot change the GPUs of a running job. So a wing is kept as it is, or left, and GPUs are gained by new
wings, each on one node. At least one wing is kept: its processes have the training in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pollux_slurm.model.allocations import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class WingChanges:
    """How a job goes from its wings to another allocation in place.

    `kept` are the places of the wings that stay. `added` has the GPUs of the new wings, one on each node.
    """

    kept: tuple[int, ...]
    added: Allocation

    def has_room(self, wings: Sequence[Allocation], free: Callable[[str], int]) -> bool:
        """Return whether new wings fit beside those that they replace, which leave their nodes only later.

        `free` returns the GPUs of a node that no job owns before the move.
        """
        left = {node for place, wing in enumerate(wings) if place not in self.kept for node in wing.nodes}
        return all(free(node) >= gpus for node, gpus in self.added.gpus_by_node if node in left)


def wing_changes(
    wings: Sequence[Allocation], target: Allocation, *, several_wings: Callable[[str], bool]
) -> WingChanges | None:
    """Return the changes that keep the most GPUs, None where no wing can be kept.

    `several_wings` says whether processes of several wings on that node can work together as well as those of
    one. Where they cannot, a wing is kept only if it is all that the job is to have on its nodes.
    """
    wanted = target.as_dict()
    left = Counter(wanted)
    kept = []
    # Large wings first: small ones can still fill what these leave.
    for place in sorted(range(len(wings)), key=lambda place: (-wings[place].num_gpus, place)):
        wing = wings[place]
        if wing and all(
            gpus <= left[node] and (several_wings(node) or gpus == wanted[node])
            for node, gpus in wing.gpus_by_node
        ):
            kept.append(place)
            left -= Counter(wing.as_dict())
    if not kept:
        return None
    return WingChanges(kept=tuple(sorted(kept)), added=Allocation.of(left))
