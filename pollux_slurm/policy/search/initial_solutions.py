"""Initial solutions: the current allocations, the choices at the dual prices, and the minimum for all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.placed_state import State
from pollux_slurm.policy.pricing.dual_bound import Dual, solve_dual
from pollux_slurm.policy.pricing.relaxation import Relaxation
from pollux_slurm.policy.problem.node_sets import Cluster
from pollux_slurm.policy.search.construction import Constructor
from pollux_slurm.policy.search.exchange import Exchange

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class InitialSolutions:
    """Makes initial solutions for one problem. One that is worth `enough` is improved no further."""

    def __init__(
        self, cluster: Cluster, candidates: Candidates, relaxation: Relaxation, dual: Dual, *, enough: float
    ) -> None:
        self._cluster, self._candidates, self._relaxation, self._dual = cluster, candidates, relaxation, dual
        self._enough = enough
        self._current = State(cluster, candidates)

    def current(self, *, filled: bool = False) -> State:
        """Return the current allocations; with `filled`, idle GPUs are given to jobs that gain by them."""
        state = self._current.copy()
        if filled:
            self._refine(state, self._constructor(state))
        return state

    def fill_idle(self, state: State) -> None:
        """Give idle GPUs to jobs that gain by them: the searches may leave some."""
        if state.idle_gpus > 0:
            self._constructor(state).fill()

    def from_prices(self) -> State | None:
        """Return each job's choice at the dual prices, placed; None where a running job fits nowhere."""
        return self._placed(self._dual.choice)

    def from_even_shares(self) -> Iterator[State]:
        """Yield the choices among shares that pack well: divisors of nodes, then powers of two."""
        tables, widest = self._candidates.tables, self._cluster.max_gpus_per_node
        gpus, share = tables.num_gpus, tables.per_node
        allowed: tuple[BoolArray, ...] = (
            (share > 0) & (widest % np.maximum(share, 1) == 0),
            (gpus & (gpus - 1) == 0) | (share == widest),
        )
        tried = [self._dual.choice]
        for usable in allowed:
            choice = solve_dual(self._candidates, Relaxation(self._candidates, self._cluster, usable)).choice
            if any((choice == other).all() for other in tried):
                continue
            tried.append(choice)
            state = self._placed(choice)
            if state is not None:
                yield state

    def from_minimums(self) -> State | None:
        """Return all jobs placed again with their fewest GPUs, then filled; None where they do not fit."""
        candidates = self._candidates
        gpus = np.where(
            candidates.allowed & (candidates.tables.num_gpus > 0), candidates.tables.num_gpus[None, :], 10**9
        )
        if not gpus.shape[1]:
            return None
        some = ~candidates.settled & (gpus.min(axis=1) < 10**9)
        return self._placed(np.where(some, gpus.argmin(axis=1), -1))

    def _placed(self, choice: IntArray) -> State | None:
        state = self._current.copy()
        constructor = self._constructor(state)
        if not constructor.build(choice):
            return None
        self._refine(state, constructor)
        return state

    def _constructor(self, state: State) -> Constructor:
        return Constructor(state, self._candidates, self._relaxation, self._dual.prices)

    def _refine(self, state: State, constructor: Constructor) -> None:
        """Give away idle GPUs, then try exchanges, unless the gap is small."""
        constructor.fill()
        if state.value() < self._enough:
            Exchange(state, self._candidates).run(constructor.regretful())
