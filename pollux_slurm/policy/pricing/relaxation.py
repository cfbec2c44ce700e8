"""The Lagrangian relaxation: each job's best choice at given prices, and the dual's value and slope there.

Legend: J jobs, C columns; E classes of jobs, X cells of nodes (`shared_resources`). R resources in all: S of
the cells, each limit's GPUs, the moves of a round.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.shared_resources import shared_resources
from pollux_slurm.policy.pricing.column_costs import ColumnCosts
from pollux_slurm.policy.problem.deterministic_rounding import grid_step, ordered_inner, round_to_grid
from pollux_slurm.policy.problem.node_sets import Cluster

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# The relative error of sums of large terms that cancel; a bound is raised by it.
ROUNDING = 1e-14
# e to this power is negligible beside 1.
_OUT_OF_QUESTION = -80.0
# What sums that cancel are rounded to, as a part of their terms.
_BITS_OF_SUMS = 36


class _Chances(NamedTuple):
    """The smoothed L; `part` (J, C) and `stays` (J,) are how likely each job takes a column, or stays.

    `uses` (E, C, S) is what a class takes by a column, over its `cells` (E, C, X).
    """

    value: float
    part: FloatArray
    stays: FloatArray
    uses: FloatArray
    cells: FloatArray | BoolArray


class Relaxation:
    """The jobs' choices at given prices. `usable` (J, C) may restrict the candidates further."""

    def __init__(self, candidates: Candidates, cluster: Cluster, usable: BoolArray | None = None) -> None:
        tables, count = candidates.tables, candidates.num_jobs
        self.resources = resources = shared_resources(candidates, cluster)
        self._value = candidates.value if usable is None else np.where(usable, candidates.value, -np.inf)
        if resources.possible is not None:
            self._value = np.where(resources.possible, self._value, -np.inf)
        self._stay_value = candidates.stay_value
        self._gpus = tables.num_gpus.astype(np.float64)
        self._costs = costs = ColumnCosts(resources, self._gpus)
        self._num_shared, self.num_cells = costs.num_shared, costs.num_cells
        self.num_classes = costs.num_classes
        if costs.only_use is not None:
            self._value = np.where(costs.never[0] > 0, -np.inf, self._value)
        self._stay_use = resources.stay_use[:count]
        self._current_gpus = np.add.reduce(candidates.stay_gpus[:count], axis=1, dtype=np.float64)
        self._members = candidates.members[:count].astype(np.float64)
        moves = [] if candidates.max_moves is None else [candidates.max_moves]
        self._has_moves = bool(moves)
        self._running = candidates.moves.astype(np.float64)
        # Jobs outside the objective keep their part of each resource.
        nodes = resources.total - np.add.reduce(resources.stay_use[count:], axis=0)
        limits = candidates.group_budget
        if len(limits):
            limits = limits - candidates.stay_gpus[count:].sum(axis=1) @ candidates.members[count:]
        self.budget = np.array([*nodes.tolist(), *limits.tolist(), *moves], dtype=np.float64)
        self._rows = np.arange(count)
        self._slope_step = _step_of(self.budget)
        # Nothing but nodes is short, and all may use the same.
        self._is_plain = costs.only_use is not None and not self._has_moves and not self._members.shape[1]

    @property
    def num_jobs(self) -> int:
        """The number of jobs."""
        return len(self._rows)

    def sample(self, count: int) -> Relaxation:
        """Return about `count` of the jobs, evenly picked, with their part of every budget."""
        step = len(self._rows) // max(count, 1)
        if step < 2:
            return self
        few = copy.copy(self)
        for name in ("_value", "_stay_value", "_stay_use", "_current_gpus", "_members", "_running"):
            setattr(few, name, getattr(self, name)[::step])
        few._costs = self._costs.sample(step)
        few._rows = np.arange(len(few._stay_value))
        few.budget = self.budget * (len(few._rows) / len(self._rows))
        few._slope_step = _step_of(few.budget)
        return few

    def without(self, waiting: BoolArray, unserved: FloatArray) -> Relaxation:
        """Return the relaxation in which the jobs marked (J,) get nothing, with values `unserved` (J,)."""
        other = copy.copy(self)
        other._value = np.where(waiting[:, None], -np.inf, self._value)
        other._stay_value = np.where(waiting, unserved, self._stay_value)
        other._stay_use = np.where(waiting[:, None], 0.0, self._stay_use)
        other._current_gpus = np.where(waiting, 0.0, self._current_gpus)
        return other

    def _plain_costs(self, prices: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what each column costs, (C,), and what each job has, (J,), where the relaxation is plain."""
        only_use = self._costs.only_use
        assert only_use is not None
        if self.num_cells == 1 and not any(prices.tolist()[1:]):
            gpu = prices[0]  # mostly nothing else has a price: the rest would add nothing
            return only_use[0] * gpu, self._stay_use[:, 0] * gpu
        return self._costs.of_jobs(prices), ordered_inner(self._stay_use, prices)

    def _best_candidates(self, prices: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return value − λ·use of staying and of the best new column, and that column, each (J,)."""
        shared, groups = self._num_shared, self._members.shape[1]
        stay = self._stay_value - ordered_inner(self._stay_use, prices[:shared])
        if not self._value.shape[1]:
            count = len(self._rows)
            return stay, np.full(count, -np.inf), np.zeros(count, dtype=np.int64)
        reduced = self._value - self._costs.of_jobs(prices)
        if groups:
            own = ordered_inner(self._members, prices[shared : shared + groups])
            stay -= own * self._current_gpus
            if own.any():
                reduced -= own[:, None] * self._gpus
        pick = reduced.argmax(axis=1)
        best = reduced[self._rows, pick]
        if self._has_moves:
            best = best - prices[-1] * self._running
        return stay, best, pick

    def choose(self, prices: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return the terms of L(λ), the use of each resource, and each job's column."""
        if self._is_plain:
            return self._choose_plainly(prices)
        shared, groups = self._num_shared, self._members.shape[1]
        stay, best, pick = self._best_candidates(prices)
        new = best > stay
        taken = np.empty(len(prices))
        taken[:shared] = self._stay_use[~new].sum(axis=0) + self._costs.taken(new, pick, prices)
        if groups:
            gpus = self._current_gpus.copy()
            gpus[new] = self._gpus[pick[new]]
            taken[shared : shared + groups] = gpus @ self._members
        if self._has_moves:
            taken[-1] = self._running[new].sum()
        terms = np.concatenate([np.where(new, best, stay), prices * self.budget])
        return terms, taken, np.where(new, pick, -1)

    def _choose_plainly(self, prices: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return the same where nothing but nodes is short, and all may use the same: the usual case."""
        fixed_use = self._costs.fixed_use
        assert fixed_use is not None
        reduced = self.reduced(prices, stay_first=True)
        pick = reduced.argmax(axis=1)  # of equals the first: what it has
        choice = pick - 1
        taken = np.add.reduce(self._stay_use.compress(pick == 0, axis=0), axis=0)
        taken += np.add.reduce(fixed_use.take(choice.compress(pick > 0), axis=0), axis=0)
        terms = np.concatenate((reduced[self._rows, pick], prices * self.budget))
        return terms, taken, choice

    def smooth(self, prices: FloatArray, temperature: float) -> tuple[float, FloatArray, FloatArray]:
        """Return the smoothed L, its slope (R,) and its curvature (R, R).

        What is out of the question divides to −inf, and what is not smooth has no finite curvature: call it
        where overflow is not a warning.
        """
        chances = self._chances(prices, temperature)
        moments = self._plain_moments(chances) if self._is_plain else self._moments(chances)
        return chances.value, *self._curve(*moments, temperature)

    def _chances(self, prices: FloatArray, temperature: float) -> _Chances:
        """Return the smoothed L, and each job's chances of columns and of staying that it comes from."""
        shared, groups = self._num_shared, self._members.shape[1]
        costs = self._costs
        cells: FloatArray | BoolArray = costs.may
        stay = self._stay_value - ordered_inner(self._stay_use, prices[:shared])
        if costs.fixed is not None:
            uses = costs.fixed
            reduced = self._value - costs.of_jobs(prices)
        else:
            of_jobs, cells = costs.smooth(prices, temperature)
            uses = costs.spread(cells)
            reduced = self._value - of_jobs
        if groups:
            own = ordered_inner(self._members, prices[shared : shared + groups])
            stay = stay - own * self._current_gpus
            reduced -= own[:, None] * self._gpus
        if self._has_moves:
            reduced -= (prices[-1] * self._running)[:, None]
        most = np.maximum(np.maximum.reduce(reduced, axis=1, initial=-np.inf), stay)
        reduced -= most[:, None]
        reduced /= temperature
        stays = np.exp((stay - most) / temperature)
        # It counts nothing either way, and far below this exponentials take four times as long.
        np.maximum(reduced, _OUT_OF_QUESTION, out=reduced)
        part = np.exp(reduced, out=reduced)
        whole = np.add.reduce(part, axis=1) + stays
        part /= whole[:, None]
        stays /= whole
        total = float(np.add.reduce(most + temperature * np.log(whole)) + prices @ self.budget)
        return _Chances(total, part, stays, uses, cells)

    def _plain_moments(self, chances: _Chances) -> tuple[FloatArray, FloatArray]:
        """Return what `_moments` does, where the relaxation is plain."""
        part, use = chances.part, chances.uses[0]
        staying = chances.stays[:, None] * self._stay_use
        mean = part @ use
        mean += staying
        moment = (use.T * np.add.reduce(part, axis=0)) @ use
        moment += staying.T @ self._stay_use
        return mean, moment

    def _moments(self, chances: _Chances) -> tuple[FloatArray, FloatArray]:
        """Return E[use] of each job, (J, R), and Σ E[use·useᵀ] over all of them, (R, R).

        The latter of new columns, within cells only.
        """
        _, part, stays, uses, cells = chances
        shared, groups, size = self._num_shared, self._members.shape[1], len(self.budget)
        staying = stays[:, None] * self._stay_use
        mean, moment = np.zeros((len(stays), size)), np.zeros((size, size))
        new = self._costs.times(part, uses)
        mean[:, :shared] = new + staying
        moment[:shared, :shared] = self._costs.squared(part, cells)
        moment[:shared, :shared] += staying.T @ self._stay_use
        if groups:
            here = slice(shared, shared + groups)
            gpus, squared = part @ self._gpus, part @ self._gpus**2
            mean[:, here] = (gpus + stays * self._current_gpus)[:, None] * self._members
            both = self._costs.times(part, uses * self._gpus[:, None]) + staying * self._current_gpus[:, None]
            moment[:shared, here] = both.T @ self._members
            moment[here, :shared] = moment[:shared, here].T
            weighted = self._members * (squared + stays * self._current_gpus**2)[:, None]
            moment[here, here] = weighted.T @ self._members
        if self._has_moves:
            mean[:, -1] = (1.0 - stays) * self._running
            moment[-1, -1] = mean[:, -1].sum()
            moment[:shared, -1] = moment[-1, :shared] = self._running @ new
            if groups:
                moment[here, -1] = moment[-1, here] = (self._running * gpus) @ self._members
        return mean, moment

    def _curve(
        self, mean: FloatArray, moment: FloatArray, temperature: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return slope and curvature of the smoothed L, of E[use] (J, R) and Σ E[use·useᵀ] (R, R)."""
        # What is left of sums that cancel is not the same on every machine.
        slope = round_to_grid(self.budget - np.add.reduce(mean, axis=0), self._slope_step)
        size = np.sqrt(np.maximum(moment.diagonal(), 1.0))
        spread = round_to_grid(moment - mean.T @ mean, grid_step(size[:, None] * size, _BITS_OF_SUMS))
        spread /= temperature
        return slope, spread

    def reduced(self, prices: FloatArray, *, stay_first: bool = False) -> FloatArray:
        """Return value − λ·use of every column for every job, (J, C + 1): what it has is last, or first."""
        shared, groups = self._num_shared, self._members.shape[1]
        found = np.empty((len(self._rows), len(self._gpus) + 1))
        new, stay = (found[:, 1:], found[:, 0]) if stay_first else (found[:, :-1], found[:, -1])
        if self._is_plain:
            costs, staying = self._plain_costs(prices)
        else:
            costs, staying = self._costs.of_jobs(prices), ordered_inner(self._stay_use, prices[:shared])
        np.subtract(self._value, costs, out=new)
        np.subtract(self._stay_value, staying, out=stay)
        if groups:
            own = ordered_inner(self._members, prices[shared : shared + groups])
            new -= own[:, None] * self._gpus
            stay -= own * self._current_gpus
        if self._has_moves:
            new -= (prices[-1] * self._running)[:, None]
        return found


def _step_of(budget: FloatArray) -> FloatArray:
    """Return the steps to which what is left of budgets is rounded."""
    return grid_step(np.maximum(budget, 1.0), _BITS_OF_SUMS)
