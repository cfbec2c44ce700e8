"""Placed states for the searches to start from: what jobs hold, what they would buy, the minimum for all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.placed_state import State
from pollux_slurm.policy.exact.construction import Constructor
from pollux_slurm.policy.exact.exchange import Exchange
from pollux_slurm.policy.pricing.dual_bound import Dual, solve_dual
from pollux_slurm.policy.pricing.pricing import Market
from pollux_slurm.policy.problem.node_sets import Cluster

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Starts:
    """Makes starts for one problem. One that is worth `enough` is filled no further."""

    def __init__(
        self, cluster: Cluster, candidates: Candidates, market: Market, dual: Dual, *, enough: float
    ) -> None:
        self._cluster, self._candidates, self._market, self._dual = cluster, candidates, market, dual
        self._enough = enough
        self._as_held = State(cluster, candidates)

    def held(self, *, filled: bool = False) -> State:
        """Return what the jobs hold, `filled` with what is idle if asked."""
        state = self._as_held.copy()
        if filled:
            self._refine(state, self._constructor(state))
        return state

    def top_up(self, state: State) -> None:
        """Offer what is idle in a state once more: the searches may have left something to take."""
        if state.idle_gpus > 0:
            self._constructor(state).fill()

    def bought(self) -> State | None:
        """Return what jobs buy at the prices, placed and filled; None where a running job found no place."""
        return self._placed(self._dual.choice)

    def narrow(self) -> Iterator[State]:
        """Yield what jobs buy where only shares that pack well are allowed: parts of nodes, powers of two."""
        tables, widest = self._candidates.tables, self._cluster.max_gpus_per_node
        gpus, share = tables.num_gpus, tables.per_node
        allowed: tuple[BoolArray, ...] = (
            (share > 0) & (widest % np.maximum(share, 1) == 0),
            (gpus & (gpus - 1) == 0) | (share == widest),
        )
        tried = [self._dual.choice]
        for usable in allowed:
            choice = solve_dual(self._candidates, Market(self._candidates, self._cluster, usable)).choice
            if any((choice == other).all() for other in tried):
                continue
            tried.append(choice)
            state = self._placed(choice)
            if state is not None:
                yield state

    def smallest(self) -> State | None:
        """Return everyone placed anew at the fewest GPUs that are allowed, filled; None where that fails."""
        candidates = self._candidates
        gpus = np.where(
            candidates.allowed & (candidates.tables.num_gpus > 0), candidates.tables.num_gpus[None, :], 10**9
        )
        if not gpus.shape[1]:
            return None
        some = ~candidates.settled & (gpus.min(axis=1) < 10**9)
        return self._placed(np.where(some, gpus.argmin(axis=1), -1))

    def _placed(self, choice: IntArray) -> State | None:
        state = self._as_held.copy()
        constructor = self._constructor(state)
        if not constructor.build(choice):
            return None
        self._refine(state, constructor)
        return state

    def _constructor(self, state: State) -> Constructor:
        return Constructor(state, self._candidates, self._market, self._dual.prices)

    def _refine(self, state: State, constructor: Constructor) -> None:
        """Fill what is idle, then let each job that regrets its place exchange, unless the gap is small."""
        constructor.fill()
        if state.value() < self._enough:
            Exchange(state, self._candidates).run(constructor.regretful())
