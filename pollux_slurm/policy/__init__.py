"""Scheduling decisions: a problem in, allocations out. Pure functions of numpy and scipy.

May be imported by `cli`, `daemon`, `now`, `report`, `simulator`.
"""

from pollux_slurm.policy.candidates.in_place_moves import expected_move
from pollux_slurm.policy.decide import SOLVERS, Allocations, allocate, decide, fitness_of
from pollux_slurm.policy.explain.wording import BOUND_TEXTS, explanation, way_text
from pollux_slurm.policy.objectives.job_values import remaining_by_kind_s
from pollux_slurm.policy.objectives.registry import OBJECTIVES
from pollux_slurm.policy.problem.node_facts import NodeFactsCache

__all__ = [
    "BOUND_TEXTS",
    "OBJECTIVES",
    "SOLVERS",
    "Allocations",
    "NodeFactsCache",
    "allocate",
    "decide",
    "expected_move",
    "explanation",
    "fitness_of",
    "remaining_by_kind_s",
    "way_text",
]
