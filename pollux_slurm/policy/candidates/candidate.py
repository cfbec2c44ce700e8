"""A candidate: one allocation that a job could get, before it is placed on nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from pollux_slurm.model import Configuration


# No code changes one. It is not frozen because a simulation makes tens of thousands, which would take three
# times as long.
@dataclass(slots=True, kw_only=True)
class Candidate:
    """A new allocation, the current one, or nothing (K = 0).

    A new one is column `column` of the tables: `num_gpus` GPUs on nodes of one type, `kind`, `per_node` on
    each of N nodes. With `is_uneven`, `per_node` is 0 and the GPUs are split freely over two nodes or more.
    `value` is the contribution to the objective's sum. That of a waiting job's nothing is so low that no gain
    of other jobs makes up for it, unless the objective allows it: as many jobs as possible are served before
    any grows.

    A column that a job may reach in place has two candidates, each the `other` of the other: only the nodes
    decide which one counts. `in_place` tells them apart. `shortfall` is what its value lacks to the better's.
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
    in_place: bool = False
    shortfall: float = 0.0
    other: Candidate | None = field(default=None, repr=False, compare=False)

    @property
    def configuration(self) -> Configuration:
        return Configuration(num_nodes=self.num_nodes, num_gpus=self.num_gpus)
