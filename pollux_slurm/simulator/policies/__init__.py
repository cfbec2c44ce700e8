"""The policies of simulations, by name.

May be imported by `simulator/experiments`.
"""

from __future__ import annotations

from pollux_slurm.errors import UsageError
from pollux_slurm.model import Objective
from pollux_slurm.simulator.engine.cluster import SchedulingPolicy
from pollux_slurm.simulator.policies.optimus import OptimusPolicy
from pollux_slurm.simulator.policies.pollux import PolluxPolicy
from pollux_slurm.simulator.policies.sia import SiaPolicy
from pollux_slurm.simulator.policies.slurm import SlurmPolicy
from pollux_slurm.simulator.policies.tiresias import TiresiasPolicy

POLICIES = ("pollux", "genetic", "sia", "tiresias", "optimus", "slurm")

__all__ = [
    "POLICIES",
    "OptimusPolicy",
    "PolluxPolicy",
    "SiaPolicy",
    "SlurmPolicy",
    "TiresiasPolicy",
    "make_policy",
]


def make_policy(name: str, *, objective: str, declared: bool) -> SchedulingPolicy:
    """Return a new policy. Only `pollux` has an objective and uses declared epochs.

    `genetic` is the paper's search on the paper's objective. Raises `UsageError` for an unknown name.
    """
    if name == "pollux":
        return PolluxPolicy(Objective(name=objective), declared=declared)
    if name == "genetic":
        return PolluxPolicy(Objective(name="osdi21"), solver="genetic", effort=1.0)
    if name == "sia":
        return SiaPolicy()
    if name == "tiresias":
        return TiresiasPolicy()
    if name == "optimus":
        return OptimusPolicy()
    if name == "slurm":
        return SlurmPolicy()
    raise UsageError(f"unknown policy {name!r}; there are {', '.join(POLICIES)}")
