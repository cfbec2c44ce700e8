"""Placed states for the searches to start from: what jobs hold, what they would buy, the minimum for all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.candidates import Menu
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

    def __init__(self, cluster: Cluster, menu: Menu, market: Market, dual: Dual, *, enough: float) -> None:
        self._cluster, self._menu, self._market, self._dual = cluster, menu, market, dual
        self._enough = enough
        self._as_held = State(cluster, menu)

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
        """Yield what jobs buy where only shares that pack well are offered: parts of nodes, powers of two."""
        tables, widest = self._menu.tables, self._cluster.widest
        gpus, share = tables.num_gpus, tables.per_node
        offered: tuple[BoolArray, ...] = (
            (share > 0) & (widest % np.maximum(share, 1) == 0),
            (gpus & (gpus - 1) == 0) | (share == widest),
        )
        tried = [self._dual.choice]
        for usable in offered:
            choice = solve_dual(self._menu, Market(self._menu, self._cluster, usable)).choice
            if any((choice == other).all() for other in tried):
                continue
            tried.append(choice)
            state = self.bought(choice)
            if state is not None:
                yield state

    def smallest(self, *, anew: bool = False) -> State | None:
        """Return everyone at the fewest GPUs that are offered, filled; None where that cannot be placed.

        A running job that holds no more stays where it is, unless all are to be placed `anew`.
        """
        menu = self._menu
        gpus = np.where(menu.offered & (menu.tables.num_gpus > 0), menu.tables.num_gpus[None, :], 10**9)
        if not gpus.shape[1]:
            return None
        held = np.where(menu.waits, 10**8, menu.stay_gpus[: menu.num_jobs].sum(axis=1))
        if anew:
            held = np.where(menu.settled, 0, 10**8)
        return self.bought(np.where(gpus.min(axis=1) < held, gpus.argmin(axis=1), -1))

    def _constructor(self, state: State) -> Constructor:
        return Constructor(state, self._menu, self._market, self._dual.prices)

    def _refine(self, state: State, constructor: Constructor) -> None:
        """Fill what is idle and exchange, in turns, until the gap is small or nothing helps."""
        menu = self._menu
        for _ in range(_TURNS):
            constructor.fill()
            if value(state, range(menu.num_jobs)) >= self._enough:
                return
            exchange = Exchange(state, menu)
            if not exchange.run(constructor.regretful(), _LOOKS_PER_JOB * menu.num_jobs):
                return
