"""How a job moves in place, and what that costs. Which moves can be made so is the rule of `model.wings`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pollux_slurm.model import Allocation, wing_changes
from pollux_slurm.simulator.engine.cluster_rules import OTHER_STATE_BYTES, STATE_BYTES, Delays, InPlace
from pollux_slurm.simulator.engine.job import GpusByNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup:
    """A move in place: the wings after it, the GPUs by node of those that stay, and its costs in seconds.

    The job trains on its old GPUs for `warm_up_s`, during which `num_new_gpus` are idle. Then it makes no
    progress for `standstill_s`.
    """

    wings: tuple[GpusByNode, ...]
    continuing: Mapping[int, int]
    num_new_gpus: int
    warm_up_s: float
    standstill_s: float


def plan_regroup(
    wings: Sequence[GpusByNode],
    after: GpusByNode,
    free: Sequence[int],
    application: str,
    rules: InPlace,
    delays: Delays | None,
) -> Regroup | None:
    """Return how a job with `wings` moves in place, None where it cannot.

    `free` are the GPUs of each node that no job owns before the decision.
    """
    several_wings: Callable[[str], bool] = lambda node: rules.several_wings  # noqa: E731
    named = [as_allocation(wing) for wing in wings]
    changes = wing_changes(named, as_allocation(after), several_wings=several_wings)
    if changes is None or not changes.has_room(named, lambda name: free[_number(name)]):
        return None
    kept = [wings[place] for place in changes.kept]
    added = tuple((_number(name), gpus) for name, gpus in changes.added.gpus_by_node)
    continuing: Counter[int] = Counter()
    for wing in kept:
        continuing.update(dict(wing))
    num_new_gpus = changes.added.num_gpus
    return Regroup(
        wings=(*kept, *((part,) for part in added)),
        continuing=continuing,
        num_new_gpus=num_new_gpus,
        warm_up_s=expected_warm_up_s(application, num_new_gpus, rules, delays),
        standstill_s=expected_standstill_s(application, num_new_gpus, rules, delays),
    )


def node_name(node: int) -> str:
    """Return the name of a node in problems."""
    return f"n{node:05d}"


def as_allocation(gpus_by_node: GpusByNode) -> Allocation:
    """Return an allocation with names of nodes."""
    return Allocation.of({node_name(node): gpus for node, gpus in gpus_by_node})


def _number(name: str) -> int:
    return int(name[1:])


def expected_warm_up_s(application: str, num_new_gpus: int, rules: InPlace, delays: Delays | None) -> float:
    """Return how long new GPUs are idle while their processes start."""
    if not num_new_gpus:
        return 0.0
    if delays is None:
        return rules.warm_up_s
    if delays.warm_up_s is not None:
        return delays.warm_up_s
    # New processes get the state at the regroup, not from a checkpoint.
    return delays.start_s + delays.time_to_first_step_s(application, restore=False, num_gpus=num_new_gpus)


def expected_standstill_s(
    application: str, num_new_gpus: int, rules: InPlace, delays: Delays | None
) -> float:
    """Return how long the regroup itself takes, with the state on its way to new processes."""
    if delays is not None and delays.standstill_s is not None:
        return delays.standstill_s
    if not num_new_gpus:
        return rules.standstill_s
    state_bytes = STATE_BYTES.get(application, OTHER_STATE_BYTES)
    return rules.standstill_s + rules.standstill_s_per_gb * state_bytes / 1e9
