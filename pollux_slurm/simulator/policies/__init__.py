"""What can decide in a simulation, by name."""

from __future__ import annotations

from pollux_slurm.errors import UsageError
from pollux_slurm.model import Objective
from pollux_slurm.simulator.cluster import SchedulingPolicy
from pollux_slurm.simulator.policies.optimus import OptimusPolicy
from pollux_slurm.simulator.policies.pollux import PolluxPolicy
from pollux_slurm.simulator.policies.tiresias import TiresiasPolicy

POLICIES = ("pollux", "tiresias", "optimus")

__all__ = ["POLICIES", "OptimusPolicy", "PolluxPolicy", "TiresiasPolicy", "make_policy"]


def make_policy(name: str, *, objective: str, declared: bool) -> SchedulingPolicy:
    """Return a fresh policy. Only `pollux` has an objective and uses what jobs declare."""
    if name == "tiresias":
        return TiresiasPolicy()
    if name == "optimus":
        return OptimusPolicy()
    if name == "pollux":
        return PolluxPolicy(Objective(name=objective), declared=declared)
    raise UsageError(f"unknown policy {name!r}; there are {', '.join(POLICIES)}")
