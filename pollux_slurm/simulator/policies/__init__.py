"""The policies of simulations, by name.

May be imported by `simulator/experiments`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pollux_slurm.errors import UsageError
from pollux_slurm.model import Objective
from pollux_slurm.simulator.engine.cluster import SchedulingPolicy
from pollux_slurm.simulator.policies.adaptive.external import ExternalPolicy
from pollux_slurm.simulator.policies.adaptive.pollux import PolluxPolicy
from pollux_slurm.simulator.policies.adaptive.sia import SiaPolicy
from pollux_slurm.simulator.policies.antman import AntManPolicy
from pollux_slurm.simulator.policies.edf import EdfPolicy
from pollux_slurm.simulator.policies.elasticflow import ElasticFlowPolicy
from pollux_slurm.simulator.policies.gandiva import GandivaPolicy
from pollux_slurm.simulator.policies.gavel import GAVEL_OBJECTIVES, GavelPolicy
from pollux_slurm.simulator.policies.optimus import OptimusPolicy
from pollux_slurm.simulator.policies.shockwave import ShockwavePolicy
from pollux_slurm.simulator.policies.slaq import SlaqPolicy
from pollux_slurm.simulator.policies.slurm import SlurmPolicy
from pollux_slurm.simulator.policies.themis import ThemisPolicy
from pollux_slurm.simulator.policies.tiresias import TiresiasPolicy

# Gavel's policies: aware and agnostic of GPU types.
_GAVEL = {
    f"gavel-{objective}{'' if aware else '-agnostic'}": (objective, aware)
    for objective in GAVEL_OBJECTIVES
    for aware in (True, False)
}
_OTHERS: Mapping[str, Callable[[], SchedulingPolicy]] = MappingProxyType(
    {
        "themis": ThemisPolicy,
        "elasticflow": ElasticFlowPolicy,
        "edf": EdfPolicy,
        "slaq": SlaqPolicy,
        "shockwave": ShockwavePolicy,
    }
)
# Policies that put two jobs on a GPU need the rates of pairs.
SHARING = ("gandiva", "antman")
POLICIES = (
    *("pollux", "genetic", "sia", "tiresias", "optimus", "slurm", "external"),
    *(*_GAVEL, *_OTHERS, *SHARING),
)

__all__ = [
    "POLICIES",
    "SHARING",
    "AntManPolicy",
    "EdfPolicy",
    "ElasticFlowPolicy",
    "ExternalPolicy",
    "GandivaPolicy",
    "GavelPolicy",
    "OptimusPolicy",
    "PolluxPolicy",
    "ShockwavePolicy",
    "SiaPolicy",
    "SlaqPolicy",
    "SlurmPolicy",
    "ThemisPolicy",
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
    if name in _GAVEL:
        objective_of_gavel, aware = _GAVEL[name]
        return GavelPolicy(objective_of_gavel, aware=aware)
    if name in _OTHERS:
        return _OTHERS[name]()
    raise UsageError(f"unknown policy {name!r}; there are {', '.join(POLICIES)}")
