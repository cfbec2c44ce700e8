"""Problem in, allocation out: pure functions of numpy and scipy."""

from pollux_slurm.policy.decide import SOLVERS, Given, allocate, decide, score
from pollux_slurm.policy.nodes import KnownNodes
from pollux_slurm.policy.objectives import OBJECTIVES
from pollux_slurm.policy.wording import explanation

__all__ = ["OBJECTIVES", "SOLVERS", "Given", "KnownNodes", "allocate", "decide", "explanation", "score"]
