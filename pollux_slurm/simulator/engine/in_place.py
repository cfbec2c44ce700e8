"""Which moves can be made in place, and what these cost.

A job's processes run in wings, Slurm jobs on one node each. Slurm cannot change the GPUs of a running job, so
a wing stays as it is, is added, or is removed. A wing of another size on the same node replaces the old one,
and both own GPUs there while the new one starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pollux_slurm.simulator.engine.cluster_rules import OTHER_STATE_BYTES, STATE_BYTES, Delays, InPlace
from pollux_slurm.simulator.engine.job import GpusByNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup:
    """A move in place: the GPUs of each node whose processes continue, and its costs in seconds.

    The job trains on its old GPUs for `warm_up_s`, during which `num_new_gpus` are idle. Then it makes no
    progress for `standstill_s`.
    """

    continuing: Mapping[int, int]
    num_new_gpus: int
    warm_up_s: float
    standstill_s: float


def plan_regroup(
    before: GpusByNode,
    after: GpusByNode,
    spare: Sequence[int],
    application: str,
    rules: InPlace,
    delays: Delays | None,
) -> Regroup | None:
    """Return how a job moves in place, None where it cannot.

    `spare` are the GPUs of each node that no job owns after the round.
    """
    owned = dict(before)
    continuing: dict[int, int] = {}
    for node, gpus in after:
        old = owned.get(node, 0)
        if rules.several_wings:
            continuing[node] = min(old, gpus)
        else:
            continuing[node] = gpus if gpus == old else 0
        if continuing[node] < gpus and old - continuing[node] > spare[node]:
            return None
    num_new_gpus = sum(gpus - continuing[node] for node, gpus in after)
    return Regroup(
        continuing=continuing,
        num_new_gpus=num_new_gpus,
        warm_up_s=_warm_up_s(application, num_new_gpus, rules, delays),
        standstill_s=_standstill_s(application, num_new_gpus, rules),
    )


def expected_delay_s(application: str, rules: InPlace, delays: Delays | None) -> float:
    """Return the delay that a policy expects of a move in place: the time until it has its effect.

    A policy that expects the standstill alone moves jobs so often that the GPUs which wait for new processes
    cost more than the moves gain.
    """
    return _warm_up_s(application, 1, rules, delays) + _standstill_s(application, 1, rules)


def _warm_up_s(application: str, num_new_gpus: int, rules: InPlace, delays: Delays | None) -> float:
    if not num_new_gpus:
        return 0.0
    if delays is None:
        return rules.warm_up_s
    # New processes get the state at the regroup, not from a checkpoint.
    return delays.start_s + delays.time_to_first_step_s(application, restore=False, num_gpus=num_new_gpus)


def _standstill_s(application: str, num_new_gpus: int, rules: InPlace) -> float:
    if not num_new_gpus:
        return rules.standstill_s
    state_bytes = STATE_BYTES.get(application, OTHER_STATE_BYTES)
    return rules.standstill_s + rules.standstill_s_per_gb * state_bytes / 1e9
