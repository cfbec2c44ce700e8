"""The Lagrangian relaxation: each job's best choice at given prices, and the dual's value and slope there.

Legend: J jobs, C columns, T GPU types, n nodes; E classes of jobs, X cells of nodes, and their A resources
each (`shared_resources`). R resources in all: S = A·X of the cells, each limit's GPUs, the moves of a round.
"""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.shared_resources import shared_resources
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


class Relaxation:
    """The jobs' choices at given prices. `usable` (J, C) may restrict the candidates further.

    A column costs a class of jobs what it costs in the cheapest cell where the class may have it. Prices are
    linear, so spreading a column over several cells is never cheaper.

    - `_use` (A, C, X): what a column takes of each resource of one cell, if it is placed there.
    - `_may` (E, C, X): whether a class may have a column in a cell.
    - `_free` (C,): whether a column has no GPUs, and so costs nothing.
    - `_never` (E, C): infinite where a class may have a column in no cell, else 0; added to costs.
    - `_only_cell` (E, C): the one cell where a class may have a column, if there is one.
    - `_fixed` (E, C, S): what a class takes by a column, whatever the prices; None if it may choose the cell.
    - `_fixed_use` (C, S) and `_only_use` (A, C): the same of the only class, over all cells and in the
      column's cell; None with several classes.
    """

    def __init__(self, candidates: Candidates, cluster: Cluster, usable: BoolArray | None = None) -> None:
        tables, count = candidates.tables, candidates.num_jobs
        self.resources = resources = shared_resources(candidates, cluster)
        self._value = candidates.value if usable is None else np.where(usable, candidates.value, -np.inf)
        if resources.possible is not None:
            self._value = np.where(resources.possible, self._value, -np.inf)
        self._stay_value = candidates.stay_value
        self._gpus = tables.num_gpus.astype(np.float64)
        self._use: FloatArray = resources.use
        self._may: BoolArray = resources.may
        self._num_shared = len(resources.total)
        self._class = resources.class_of
        self.num_classes = len(self._may)
        count_of_cells = self._may.sum(axis=2)
        self._free: BoolArray = tables.num_gpus == 0
        self._never: FloatArray = np.where((count_of_cells == 0) & ~self._free, np.inf, 0.0)
        self.num_cells = len(resources.kind_of)
        has_no_choice = count_of_cells.max(initial=0) <= 1
        self._fixed: FloatArray | None = self._spread(self._may) if has_no_choice else None
        self._only_cell: npt.NDArray[np.intp] = self._may.argmax(axis=2)
        self._columns = np.arange(len(self._gpus))
        self._only_use: FloatArray | None = None
        self._fixed_use: FloatArray | None = None
        if self._fixed is not None and self.num_classes == 1:
            self._fixed_use = self._fixed[0]
            only = self._only_cell[0]
            self._only_use = self._use[:, self._columns, only]
            self._price_at = np.arange(self._num_shared).reshape(len(self._use), -1)[:, only]
            self._value = np.where(self._never[0] > 0, -np.inf, self._value)
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
        self._is_plain = self._only_use is not None and not self._has_moves and not self._members.shape[1]

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
        for name in ("_value", "_stay_value", "_stay_use", "_current_gpus", "_members", "_running", "_class"):
            setattr(few, name, getattr(self, name)[::step])
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

    def _cell_costs(self, prices: FloatArray) -> FloatArray:
        """Return what each column costs each class in each cell, (E, C, X): infinite where it may not."""
        return np.where(self._may, self._costs_by_cell(prices), np.inf)

    def _costs_by_cell(self, prices: FloatArray) -> FloatArray:
        """Return what each column costs in each cell, (C, X)."""
        each = prices[: self._num_shared].reshape(len(self._use), 1, -1)
        return np.asarray((self._use * each).sum(axis=0), dtype=np.float64)

    def _costs(self, prices: FloatArray) -> FloatArray:
        """Return what each column costs each class, (E, C)."""
        found: FloatArray
        if self._fixed is not None:
            of_cells = self._costs_by_cell(prices)
            found = of_cells[self._columns, self._only_cell] + self._never
            return found
        found = self._cell_costs(prices).min(axis=2)
        found[:, self._free] = 0.0
        return found

    def _costs_of_jobs(self, prices: FloatArray) -> FloatArray:
        """Return what each column costs each job, (J, C), or the one row of all, (C,), without `_never`."""
        if self._only_use is not None:
            return np.add.reduce(self._only_use * prices.take(self._price_at), axis=0)  # type: ignore[no-any-return]
        return self._of_jobs(self._costs(prices))

    def _plain_costs(self, prices: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what each column costs, (C,), and what each job has, (J,), where the relaxation is plain."""
        assert self._only_use is not None
        if self.num_cells == 1 and not any(prices.tolist()[1:]):
            gpu = prices[0]  # mostly nothing else has a price: the rest would add nothing
            return self._only_use[0] * gpu, self._stay_use[:, 0] * gpu
        return self._costs_of_jobs(prices), ordered_inner(self._stay_use, prices)

    def _of_jobs(self, of_classes: FloatArray) -> FloatArray:
        """Return each job's row of a table by class, or the one row of all."""
        found: FloatArray = of_classes[self._class] if self.num_classes > 1 else of_classes[0]
        return found

    def _spread(self, parts: FloatArray | BoolArray) -> FloatArray:
        """Return what each class takes of each resource by a column, (E, C, S), spread over cells so."""
        use: FloatArray = parts[:, :, None, :] * self._use.transpose(1, 0, 2)
        return use.reshape(*parts.shape[:2], self._num_shared)

    def _best_candidates(self, prices: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return value − λ·use of staying and of the best new column, and that column, each (J,)."""
        shared, groups = self._num_shared, self._members.shape[1]
        stay = self._stay_value - ordered_inner(self._stay_use, prices[:shared])
        if not self._value.shape[1]:
            count = len(self._rows)
            return stay, np.full(count, -np.inf), np.zeros(count, dtype=np.int64)
        reduced = self._value - self._costs_of_jobs(prices)
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
        taken[:shared] = self._stay_use[~new].sum(axis=0) + self._taken(new, pick, prices)
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
        assert self._fixed_use is not None
        reduced = self.reduced(prices, stay_first=True)
        pick = reduced.argmax(axis=1)  # of equals the first: what it has
        choice = pick - 1
        taken = np.add.reduce(self._stay_use.compress(pick == 0, axis=0), axis=0)
        taken += np.add.reduce(self._fixed_use.take(choice.compress(pick > 0), axis=0), axis=0)
        terms = np.concatenate((reduced[self._rows, pick], prices * self.budget))
        return terms, taken, choice

    def _taken(self, new: BoolArray, pick: IntArray, prices: FloatArray) -> FloatArray:
        """Return what the jobs that take new columns use of each shared resource, (S,)."""
        classes, columns = self._class[new], pick[new]
        if self._fixed is not None:
            return np.asarray(self._fixed[classes, columns].sum(axis=0), dtype=np.float64)
        cells = self._cell_costs(prices)[classes, columns].argmin(axis=1)
        found = np.zeros((len(self._use), len(self.resources.kind_of)))
        for of_cells, use in zip(found, self._use, strict=True):
            np.add.at(of_cells, cells, use[columns, cells])
        return found.reshape(-1)

    def _cell_parts(self, prices: FloatArray, temperature: float) -> tuple[FloatArray, FloatArray]:
        """Return the smoothed cost of each column (E, C), and its shares by cell, (E, C, X)."""
        costs = self._cell_costs(prices)
        least = self._costs(prices)
        with np.errstate(invalid="ignore", over="ignore"):
            parts = np.where(self._may, np.exp((least[:, :, None] - costs) / temperature), 0.0)
        whole = parts.sum(axis=2)
        some = whole > 0
        parts /= np.where(some, whole, 1.0)[:, :, None]
        soft = least.copy()
        soft[some] -= temperature * np.log(whole[some])
        return soft, parts

    def smooth(self, prices: FloatArray, temperature: float) -> tuple[float, FloatArray, FloatArray]:
        """Return the smoothed L, its slope (R,) and its curvature (R, R).

        What is out of the question divides to −inf, and what is not smooth has no finite curvature: call it
        where overflow is not a warning.
        """
        shared, groups = self._num_shared, self._members.shape[1]
        cells: FloatArray | BoolArray = self._may
        stay = self._stay_value - ordered_inner(self._stay_use, prices[:shared])
        if self._fixed is not None:
            uses = self._fixed
            reduced = self._value - self._costs_of_jobs(prices)
        else:
            costs, cells = self._cell_parts(prices, temperature)
            uses = self._spread(cells)
            reduced = self._value - self._of_jobs(costs)
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

        # E[use] of each job, and Σ E[use·useᵀ] over all of them: of new columns, within cells only.
        staying = stays[:, None] * self._stay_use
        if self._is_plain:
            use = uses[0]
            mean = part @ use
            mean += staying
            moment = (use.T * np.add.reduce(part, axis=0)) @ use
            moment += staying.T @ self._stay_use
            return total, *self._curve(mean, moment, temperature)
        mean = np.zeros((len(whole), len(prices)))
        new = self._times(part, uses)
        mean[:, :shared] = new + staying
        moment = np.zeros((len(prices), len(prices)))
        if self._fixed is not None and self.num_classes == 1:
            use = self._fixed[0]
            moment[:shared, :shared] = (use.T * np.add.reduce(part, axis=0)) @ use
        else:
            chosen, num_cells = self._chosen(part, cells), self.num_cells
            for cell in range(num_cells):
                use = self._use[:, :, cell]
                moment[cell:shared:num_cells, cell:shared:num_cells] = (use * chosen[:, cell]) @ use.T
        moment[:shared, :shared] += staying.T @ self._stay_use
        if groups:
            here = slice(shared, shared + groups)
            gpus, squared = part @ self._gpus, part @ self._gpus**2
            mean[:, here] = (gpus + stays * self._current_gpus)[:, None] * self._members
            both = self._times(part, uses * self._gpus[:, None]) + staying * self._current_gpus[:, None]
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
        return total, *self._curve(mean, moment, temperature)

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

    def _times(self, part: FloatArray, uses: FloatArray) -> FloatArray:
        """Return Σ_c part·use of each job, (J, S), for `uses` (E, C, S) by class."""
        if self.num_classes == 1:
            return np.asarray(part @ uses[0], dtype=np.float64)
        found = np.empty((len(part), uses.shape[2]))
        for number, use in enumerate(uses):
            rows = self._class == number
            found[rows] = part[rows] @ use
        return found

    def _chosen(self, part: FloatArray, cells: FloatArray | BoolArray) -> FloatArray:
        """Return how much of each column all jobs together take in each cell, (C, X)."""
        if self.num_classes == 1:
            return np.asarray(part.sum(axis=0)[:, None] * cells[0], dtype=np.float64)
        found = np.zeros(cells.shape[1:])
        for number, of_class in enumerate(cells):
            found += part[self._class == number].sum(axis=0)[:, None] * of_class
        return found

    def reduced(self, prices: FloatArray, *, stay_first: bool = False) -> FloatArray:
        """Return value − λ·use of every column for every job, (J, C + 1): what it has is last, or first."""
        shared, groups = self._num_shared, self._members.shape[1]
        found = np.empty((len(self._rows), len(self._gpus) + 1))
        new, stay = (found[:, 1:], found[:, 0]) if stay_first else (found[:, :-1], found[:, -1])
        if self._is_plain:
            costs, staying = self._plain_costs(prices)
        else:
            costs, staying = self._costs_of_jobs(prices), ordered_inner(self._stay_use, prices[:shared])
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
