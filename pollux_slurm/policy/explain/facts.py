"""Facts that explanations need, of all jobs at once: what is faster, what is in reach, the next best sizes.

Legend: J jobs, C columns, T GPU types.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Allocation
from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.placed_state import Placement
from pollux_slurm.policy.explain.missing_resources import Shortage
from pollux_slurm.policy.problem.allocation_shapes import gpu_bounds
from pollux_slurm.policy.search.search import Solution

BoolArray = npt.NDArray[np.bool_]

_NONE = 2**31
# Larger sizes count as faster from this ratio on: predictions are not more accurate.
FASTER = 1.01


class SolutionFacts:
    """Facts about each job, as lists by its index: what more it could use, and its next best candidate.

    - `has_larger`: whether any configuration of the problem has more GPUs
    - `faster`: whether the job is faster on more GPUs
    - `within_max`, `within_cap`: whether it still is within its maximum, and within its exploration cap, too
    - `columns_in_reach` (J, C): the configurations left of these that the nodes which it may use allow
    - `is_in_reach`: whether there are any
    - `can_be_larger`: whether it may have more GPUs at all, faster or not
    - `wanted` (J, C): the configurations with more GPUs and a higher value for the objective
    - `least_wanted`: for each GPU type, the fewest GPUs among these, 0 without any
    - `kind_of_node`: of each node, instead, the number of its GPU type
    - `runner_up`, `runner_up_speedup`: the column of the job's next best candidate and its speedup; −1 is its
      current allocation, −2 none
    """

    def __init__(self, solution: Solution, candidates: Candidates) -> None:
        tables, count = candidates.tables, candidates.num_jobs
        self._state = state = solution.state
        self._tables, self._scores = tables, candidates.scores
        gain = candidates.scores.declared_gain
        self._declared_gain = None if gain is None else gain()
        self._node_prices: list[float] = solution.dual.node_prices().tolist()
        self.prices: list[list[float]] = solution.dual.job_prices(len(tables.kinds)).tolist()
        self.kind_of_node: list[int] = state.cluster.kind.tolist()
        self.placed: list[Placement] = [one for one in state.placed[:count] if one is not None]
        chosen = [one.candidate for one in self.placed]
        nodes = np.array([len(one.gpus) for one in self.placed], dtype=np.int64)[:, None]
        gpus = np.array([one.num_gpus for one in chosen], dtype=np.int64)[:, None]
        now = np.array([one.speedup for one in chosen], dtype=np.float64)[:, None]
        value = np.array([one.value for one in chosen], dtype=np.float64)[:, None]
        more = tables.num_gpus > gpus
        least, most = gpu_bounds(candidates.jobs)
        self.has_larger = _any(more)
        faster = (candidates.scores.speedup > now * FASTER) & more
        self.faster = _any(faster)
        within_max = tables.num_gpus <= most
        faster &= within_max
        self.within_max = _any(faster)
        allowed = within_max & (tables.num_gpus <= tables.caps[:, None])
        faster &= allowed
        self.within_cap = _any(faster)
        # Only on nodes that the job may use: not drained, and of its partition.
        resources = solution.dual.resources
        reach: BoolArray = np.any(resources.may, axis=2)[resources.class_of] | (tables.num_gpus == 0)
        possible, self.shortage = reach, Shortage(state, candidates)
        if state.cluster.is_tight and candidates.num_jobs:
            possible = np.stack([self.shortage.possible(index) for index in range(candidates.num_jobs)])
        reach_from_least = reach & (tables.num_gpus >= least)
        self.columns_in_reach = faster & reach_from_least
        self.is_in_reach = _any(self.columns_in_reach)
        self.can_be_larger = _any(more & allowed & reach_from_least)
        self.wanted = (candidates.value > value) & more & reach
        self.is_wanted = _any(self.wanted)
        sizes = np.where(self.wanted, tables.num_gpus, _NONE)
        fewest = np.array([sizes[:, mine].min(axis=1, initial=_NONE) for mine in tables.columns.of_kind])
        self.least_wanted: list[list[int]] = np.where(fewest < _NONE, fewest, 0).tolist()
        same = (tables.num_nodes == nodes) & (tables.num_gpus == gpus)
        other = np.where(same | ~possible | ~self._allowed(candidates), -np.inf, candidates.value)
        best, found = np.full(count, -1), np.full(count, -np.inf)
        if other.shape[1]:
            best = other.argmax(axis=1)
            found = other[np.arange(count), best]
        column = np.where(found > -np.inf, best, -2)
        current = np.array([job.current.num_gpus for job in candidates.jobs], dtype=np.int64)[:, None]
        current_nodes = np.array([job.current.num_nodes for job in candidates.jobs], dtype=np.int64)[:, None]
        differs = ((current != gpus) | (current_nodes != nodes)).ravel() & (current.ravel() > 0)
        stays_better = differs & (candidates.stay_value >= found)
        self.runner_up: list[int] = np.where(stays_better, -1, column).tolist()
        # Over the fair share, as is the speedup of the chosen candidate.
        at_column = tables.speedup[np.arange(count), best] if other.shape[1] else 0.0
        self.runner_up_speedup: list[float] = np.where(
            stays_better, tables.current_speedup, at_column
        ).tolist()
        self._room: dict[tuple[int, int], int] = {}

    def _allowed(self, candidates: Candidates) -> BoolArray:
        """Return the columns, (J, C), within the limits and the budget of moves if no other job used them."""
        gpus = candidates.tables.num_gpus
        found = np.ones((candidates.num_jobs, len(gpus)), dtype=bool)
        for members, most in zip(
            candidates.members[: candidates.num_jobs].T, candidates.group_budget.tolist(), strict=True
        ):
            found[members] &= gpus <= most
        if candidates.max_moves == 0:
            found[candidates.moves] = False
        return found

    def price_of(self, allocation: Allocation) -> float:
        """Return the price of an allocation: what its GPUs would be worth to other jobs."""
        index = self._state.cluster.index
        return sum([self._node_prices[index[node]] * gpus for node, gpus in allocation.gpus_by_node])

    def type_of(self, allocation: Allocation) -> str | None:
        """Return the GPU type of an allocation; None for several types, and for one without a name."""
        kinds = {self._tables.kind_of_node[node] for node, _ in allocation.gpus_by_node}
        return (self._tables.kinds[kinds.pop()] or None) if len(kinds) == 1 else None

    def declared_gain(self, job: int) -> float | None:
        """Return the factor by which a job's declaration changes its weight, None where it does not count."""
        if self._declared_gain is None or np.isnan(self._declared_gain[job]):
            return None
        return float(self._declared_gain[job])

    def room(self, job: int, kind: int) -> int:
        """Return the free GPUs of a type on all nodes that a job may use."""
        key = (self._state.eligible[job], kind)
        if key not in self._room:
            usable = self._state.usable(job, kind)
            self._room[key] = sum(self._state.num_with(usable)[1:])
        return self._room[key]


def _any(found: BoolArray) -> list[bool]:
    listed: list[bool] = np.any(found, axis=1).tolist()
    return listed
