"""Problem in, allocation out: pure functions of numpy and scipy.

May be imported by `cli`, `daemon`, `report`, `simulator`.
"""

from pollux_slurm.policy.decide import SOLVERS, Given, allocate, decide, score
from pollux_slurm.policy.explain.wording import explanation
from pollux_slurm.policy.objectives.registry import OBJECTIVES
from pollux_slurm.policy.problem.node_facts import KnownNodes

__all__ = ["OBJECTIVES", "SOLVERS", "Given", "KnownNodes", "allocate", "decide", "explanation", "score"]
