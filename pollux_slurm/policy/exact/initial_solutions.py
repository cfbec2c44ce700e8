"""Placed states for the searches to start from: what jobs hold, what they would buy, the minimum for all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.placed_state import State
from pollux_slurm.policy.exact.construction import Constructor
from pollux_slurm.policy.exact.exchange import Exchange
from pollux_slurm.policy.exact.local_search import value
from pollux_slurm.policy.pricing.dual_bound import solve_dual
from pollux_slurm.policy.pricing.pricing import Dual, Market
from pollux_slurm.policy.problem.node_sets import Cluster

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Turns of filling and exchanging, and how often a job looks in each.
_TURNS, _LOOKS_PER_JOB = 6, 1


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

    def bought(self, choice: IntArray | None = None) -> State | None:
        """Return each job's choice placed, and filled; None where a running job found no place to move to."""
        state = self._as_held.copy()
        constructor = self._constructor(state)
        if not constructor.build(self._dual.choice if choice is None else choice):
            return None
        self._refine(state, constructor)
        return state

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
            state = self.bought(choice)
            if state is not None:
                yield state

    def smallest(self, *, anew: bool = False) -> State | None:
        """Return everyone at the fewest GPUs that are allowed, filled; None where that cannot be placed.

        A running job that holds no more stays where it is, unless all are to be placed `anew`.
        """
        candidates = self._candidates
        gpus = np.where(
            candidates.allowed & (candidates.tables.num_gpus > 0), candidates.tables.num_gpus[None, :], 10**9
        )
        if not gpus.shape[1]:
            return None
        held = np.where(candidates.waits, 10**8, candidates.stay_gpus[: candidates.num_jobs].sum(axis=1))
        if anew:
            held = np.where(candidates.settled, 0, 10**8)
        return self.bought(np.where(gpus.min(axis=1) < held, gpus.argmin(axis=1), -1))

    def _constructor(self, state: State) -> Constructor:
        return Constructor(state, self._candidates, self._market, self._dual.prices)

    def _refine(self, state: State, constructor: Constructor) -> None:
        """Fill what is idle and exchange, in turns, until the gap is small or nothing helps."""
        candidates = self._candidates
        for _ in range(_TURNS):
            constructor.fill()
            if value(state, range(candidates.num_jobs)) >= self._enough:
                return
            exchange = Exchange(state, candidates)
            if not exchange.run(constructor.regretful(), _LOOKS_PER_JOB * candidates.num_jobs):
                return
