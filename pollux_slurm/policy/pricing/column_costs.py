"""What each column costs each class of jobs at given prices, and what it takes of the shared resources.

A column costs a class of jobs what it costs in the cheapest cell where the class may have it. Prices are
linear, so spreading a column over several cells is never cheaper.

Legend: J jobs, C columns; E classes of jobs, X cells of nodes, and their A resources each
(`shared_resources`); S = A·X shared resources in all, to which the first S prices belong.
"""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.shared_resources import Resources

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class ColumnCosts:
    """The costs of columns of `num_gpus` (C,) GPUs.

    - `_use` (A, C, X): what a column takes of each resource of one cell, if it is placed there.
    - `may` (E, C, X): whether a class may have a column in a cell.
    - `_free` (C,): whether a column has no GPUs, and so costs nothing.
    - `never` (E, C): infinite where a class may have a column in no cell, else 0; added to costs.
    - `_only_cell` (E, C): the one cell where a class may have a column, if there is one.
    - `fixed` (E, C, S): what a class takes by a column, whatever the prices; None if it may choose the cell.
    - `fixed_use` (C, S) and `only_use` (A, C): the same of the only class, over all cells and in the
      column's cell; None with several classes.
    """

    def __init__(self, resources: Resources, num_gpus: FloatArray) -> None:
        self._use, self.may, self._class = resources.use, resources.may, resources.class_of
        self.num_shared, self.num_cells = len(resources.total), len(resources.kind_of)
        self.num_classes = len(self.may)
        count_of_cells = self.may.sum(axis=2)
        self._free: BoolArray = num_gpus == 0
        self.never: FloatArray = np.where((count_of_cells == 0) & ~self._free, np.inf, 0.0)
        has_no_choice = count_of_cells.max(initial=0) <= 1
        self.fixed: FloatArray | None = self.spread(self.may) if has_no_choice else None
        self._only_cell: npt.NDArray[np.intp] = self.may.argmax(axis=2)
        self._columns = np.arange(len(num_gpus))
        self.only_use: FloatArray | None = None
        self.fixed_use: FloatArray | None = None
        if self.fixed is not None and self.num_classes == 1:
            self.fixed_use = self.fixed[0]
            only = self._only_cell[0]
            self.only_use = self._use[:, self._columns, only]
            self._price_at = np.arange(self.num_shared).reshape(len(self._use), -1)[:, only]

    def sample(self, step: int) -> ColumnCosts:
        """Return the costs for every `step`-th job."""
        few = copy.copy(self)
        few._class = self._class[::step]
        return few

    def of_jobs(self, prices: FloatArray) -> FloatArray:
        """Return what each column costs each job, (J, C), or the one row of all, (C,), without `never`."""
        if self.only_use is not None:
            return np.add.reduce(self.only_use * prices.take(self._price_at), axis=0)  # type: ignore[no-any-return]
        return self._rows(self._of_classes(prices))

    def _rows(self, of_classes: FloatArray) -> FloatArray:
        """Return each job's row of a table by class, or the one row of all."""
        found: FloatArray = of_classes[self._class] if self.num_classes > 1 else of_classes[0]
        return found

    def _of_classes(self, prices: FloatArray) -> FloatArray:
        """Return what each column costs each class, (E, C)."""
        found: FloatArray
        if self.fixed is not None:
            found = self._by_cell(prices)[self._columns, self._only_cell] + self.never
            return found
        found = self._of_cells(prices).min(axis=2)
        found[:, self._free] = 0.0
        return found

    def _of_cells(self, prices: FloatArray) -> FloatArray:
        """Return what each column costs each class in each cell, (E, C, X): infinite where it may not."""
        return np.where(self.may, self._by_cell(prices), np.inf)

    def _by_cell(self, prices: FloatArray) -> FloatArray:
        """Return what each column costs in each cell, (C, X)."""
        each = prices[: self.num_shared].reshape(len(self._use), 1, -1)
        return np.asarray((self._use * each).sum(axis=0), dtype=np.float64)

    def taken(self, new: BoolArray, pick: IntArray, prices: FloatArray) -> FloatArray:
        """Return what the `new` jobs (J,) use of each shared resource by their columns `pick` (J,): (S,)."""
        classes, columns = self._class[new], pick[new]
        if self.fixed is not None:
            return np.asarray(self.fixed[classes, columns].sum(axis=0), dtype=np.float64)
        cells = self._of_cells(prices)[classes, columns].argmin(axis=1)
        found = np.zeros((len(self._use), self.num_cells))
        for of_cells, use in zip(found, self._use, strict=True):
            np.add.at(of_cells, cells, use[columns, cells])
        return found.reshape(-1)

    # ------------------------------------------------------------------------- where a column is split

    def smooth(self, prices: FloatArray, temperature: float) -> tuple[FloatArray, FloatArray]:
        """Return the smoothed cost of each column for each job, and its shares by cell, (E, C, X).

        That cost has the shape of `of_jobs`.
        """
        costs = self._of_cells(prices)
        least = self._of_classes(prices)
        with np.errstate(invalid="ignore", over="ignore"):
            parts = np.where(self.may, np.exp((least[:, :, None] - costs) / temperature), 0.0)
        whole = parts.sum(axis=2)
        some = whole > 0
        parts /= np.where(some, whole, 1.0)[:, :, None]
        soft = least.copy()
        soft[some] -= temperature * np.log(whole[some])
        return self._rows(soft), parts

    def spread(self, parts: FloatArray | BoolArray) -> FloatArray:
        """Return what each class takes of each resource by a column, (E, C, S), spread over cells so."""
        use: FloatArray = parts[:, :, None, :] * self._use.transpose(1, 0, 2)
        return use.reshape(*parts.shape[:2], self.num_shared)

    def times(self, part: FloatArray, uses: FloatArray) -> FloatArray:
        """Return Σ_c part·use of each job, (J, S), for `part` (J, C) and `uses` (E, C, S) by class."""
        if self.num_classes == 1:
            return np.asarray(part @ uses[0], dtype=np.float64)
        found = np.empty((len(part), uses.shape[2]))
        for number, use in enumerate(uses):
            rows = self._class == number
            found[rows] = part[rows] @ use
        return found

    def squared(self, part: FloatArray, cells: FloatArray | BoolArray) -> FloatArray:
        """Return Σ part·use·useᵀ over jobs and columns, (S, S), within each cell only.

        `cells` (E, C, X) is how much of a column is in each cell.
        """
        if self.fixed_use is not None:
            use = self.fixed_use
            return np.asarray((use.T * np.add.reduce(part, axis=0)) @ use, dtype=np.float64)
        found = np.zeros((self.num_shared, self.num_shared))
        chosen, num_cells = self._chosen(part, cells), self.num_cells
        for cell in range(num_cells):
            use = self._use[:, :, cell]
            found[cell::num_cells, cell::num_cells] = (use * chosen[:, cell]) @ use.T
        return found

    def _chosen(self, part: FloatArray, cells: FloatArray | BoolArray) -> FloatArray:
        """Return how much of each column all jobs together take in each cell, (C, X)."""
        if self.num_classes == 1:
            return np.asarray(part.sum(axis=0)[:, None] * cells[0], dtype=np.float64)
        found = np.zeros(cells.shape[1:])
        for number, of_class in enumerate(cells):
            found += part[self._class == number].sum(axis=0)[:, None] * of_class
        return found
