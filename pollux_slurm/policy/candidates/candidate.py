"""One thing that a job could get, as the searches over placed states handle it."""

from __future__ import annotations

from dataclasses import dataclass

from pollux_slurm.model import Configuration


# Nothing writes to one. It is not frozen because a simulation makes tens of thousands, and a frozen one takes
# three times as long to make.
@dataclass(slots=True, kw_only=True)
class Candidate:
    """One thing a job could get: a new allocation, its current one, or nothing (K = 0).

    A new one is column `column` of the tables: `num_gpus` GPUs on nodes of one type, `kind`, `per_node` on
    each of N nodes, or, where `per_node` is 0, shared out as it comes over at least two. `value` is what it
    adds to the objective's sum. With `is_uneven`, the nodes' shares are free to choose.
    For a waiting job, nothing is worth less than all that other jobs could gain by it, unless the objective
    says otherwise: as many jobs as can be served are, before any gets more.
    """

    num_nodes: int
    per_node: int
    num_gpus: int
    speedup: float
    penalty: float
    value: float
    stays: bool = False
    kind: int = -1
    column: int = -1
    is_uneven: bool = False

    @property
    def configuration(self) -> Configuration:
        return Configuration(num_nodes=self.num_nodes, num_gpus=self.num_gpus)
