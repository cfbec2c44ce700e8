"""Problem in, allocation out: pure functions of numpy and scipy."""

from pollux_slurm.policy.decide import SOLVERS, decide, score
from pollux_slurm.policy.nodes import KnownNodes
from pollux_slurm.policy.objectives import OBJECTIVES
from pollux_slurm.policy.wording import explanation

__all__ = ["OBJECTIVES", "SOLVERS", "KnownNodes", "decide", "explanation", "score"]
