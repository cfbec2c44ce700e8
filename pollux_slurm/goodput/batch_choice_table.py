"""The best batch of many jobs in many configurations, and a cache of these.

Legend: J jobs, C configurations; K replicas on N nodes. `batch_choice.py` says which batches are allowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.goodput.batch_choice import GoodputEstimate, is_possible
from pollux_slurm.goodput.batch_search import Best, Pairs, search, search_geometric
from pollux_slurm.goodput.efficiency import conservative_statistics
from pollux_slurm.model import BatchChoice, Configuration, GoodputModel

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# (spread, K): whether GPUs are on several nodes, and their number. Throughput depends on nothing else.
ThroughputKey = tuple[bool, int]
# A cache is emptied when it has so many models more than twice those in use.
_SPARE_MODELS = 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GoodputTable(Best):
    """The best batch of each job in each configuration: arrays of shape `(J, C)`.

    `goodput` is also 0 where the entry was masked out, or the job has no throughput model.
    """

    def estimate(self, job: int, configuration: int) -> GoodputEstimate | None:
        """Return the entry of job `job` in configuration `configuration`, None where its goodput is 0."""
        at = (job, configuration)
        if not self.goodput[at] > 0:
            return None
        batch = BatchChoice(
            global_batch_size=int(self.global_batch_size[at]),
            atomic_batch_size=int(self.atomic_batch_size[at]),
            accumulation_steps=int(self.accumulation_steps[at]),
        )
        step_time_s = float(self.step_time_s[at])
        return GoodputEstimate(
            batch=batch,
            throughput=batch.global_batch_size / step_time_s,
            efficiency=float(self.efficiency[at]),
            goodput=float(self.goodput[at]),
            step_time_s=step_time_s,
        )


def goodput_table(
    models: Sequence[GoodputModel | None],
    configurations: Sequence[Configuration],
    *,
    mask: BoolArray | None = None,
    geometric: bool = False,
) -> GoodputTable:
    """Return the best batch of every model in every configuration.

    With `geometric`, only 50 geometrically spaced batches are tried, as in the paper's artifact. `mask`, of
    shape `(J, C)`, marks the entries to compute; others are 0. Models are not checked: run `check_model` on
    those of untrusted clients first.
    """
    shape = (len(models), len(configurations))
    wanted = np.ones(shape, dtype=bool) if mask is None else mask.copy()
    known = [model is not None and model.throughput is not None for model in models]
    wanted &= np.array(known, dtype=bool)[:, None]
    wanted &= np.array([is_possible(c) for c in configurations], dtype=bool)[None, :]
    jobs, columns = np.nonzero(wanted)
    sizes = np.array([(c.num_nodes, c.num_gpus) for c in configurations], dtype=np.int64).reshape(-1, 2)
    pairs = _pairs(models, sizes[columns, 0], sizes[columns, 1], jobs)
    best = (search_geometric if geometric else search)(pairs)

    table = {name: np.zeros(shape, dtype=getattr(best, name).dtype) for name in Best.__dataclass_fields__}
    for name, values in table.items():
        values[jobs, columns] = getattr(best, name)
    return GoodputTable(**table)


def best_batch(model: GoodputModel, configuration: Configuration) -> GoodputEstimate | None:
    """Return the batch with the highest goodput, None without a throughput model or an allowed batch.

    The low end of the noise scale's interval counts, where there is one. Ties go to fewer micro-batches, then
    to smaller batches, but even parts win over uneven ones. Of many pairs, `goodput_table` takes a hundredth
    of the time for each.
    """
    return goodput_table([model], [configuration]).estimate(0, 0)


class TableCache:
    """Caches best batches by model and (spread, K) from one problem to the next.

    An entry is computed when it is first needed. The cache grows with every new model until `trim`.
    """

    def __init__(self) -> None:
        self._parts = {False: _CachePart(geometric=False), True: _CachePart(geometric=True)}

    def __contains__(self, model: object) -> bool:
        """Return whether this very object, not only an equal one, is in the cache."""
        return model in self._parts[False] or model in self._parts[True]

    def trim(self, num_models: int) -> None:
        """Empty the cache if it has far more than twice `num_models` models; rows are invalid then."""
        for part in self._parts.values():
            part.trim(num_models)

    def lookup(
        self,
        models: Sequence[GoodputModel],
        keys: Sequence[ThroughputKey],
        *,
        geometric: bool = False,
        wanted: BoolArray | None = None,
    ) -> tuple[FloatArray, IntArray]:
        """Return goodput, of shape `(models, keys)`, and each model's row for `estimate`.

        Only entries of `wanted`, of the same shape, are computed; others are 0.
        """
        return self._parts[geometric].lookup(models, keys, wanted)

    def estimate(
        self, row: int, key: ThroughputKey, ratio: float = 1.0, *, geometric: bool = False
    ) -> GoodputEstimate | None:
        """Return one entry for a GPU that is `ratio` times as fast, None where no batch is allowed."""
        found = self._parts[geometric].estimate(row, key)
        if found is None or ratio == 1.0:
            return found
        return GoodputEstimate(
            batch=found.batch,
            throughput=found.throughput * ratio,
            efficiency=found.efficiency,
            goodput=found.goodput * ratio,
            step_time_s=found.step_time_s / ratio,
        )


class _CachePart:
    """Rows and columns are numbered in order of arrival. Arrays double in size when they are full."""

    def __init__(self, *, geometric: bool) -> None:
        self._geometric = geometric
        self._clear()

    def __contains__(self, model: object) -> bool:
        return id(model) in self._row_of_object

    def trim(self, num_models: int) -> None:
        if len(self._models) > 2 * num_models + _SPARE_MODELS:
            self._clear()
        elif len(self._objects) > 2 * num_models + _SPARE_MODELS:
            self._row_of_object.clear()
            self._objects.clear()

    def _clear(self) -> None:
        self._models: list[GoodputModel] = []
        self._rows: dict[GoodputModel, int] = {}
        # Rows by identity, which is faster than by hash; the list keeps the objects alive, and so their ids.
        self._row_of_object: dict[int, int] = {}
        self._objects: list[GoodputModel] = []
        self._keys: dict[ThroughputKey, int] = {}
        self._sizes = np.zeros((0, 2), dtype=np.int64)
        self._table = goodput_table([], [])
        self._done = np.zeros((0, 0), dtype=bool)
        self._estimates: dict[tuple[int, ThroughputKey], GoodputEstimate | None] = {}

    def lookup(
        self, models: Sequence[GoodputModel], keys: Sequence[ThroughputKey], wanted: BoolArray | None
    ) -> tuple[FloatArray, IntArray]:
        rows = np.array([self._row(model) for model in models], dtype=np.int64)
        columns = np.array([self._column(key) for key in keys], dtype=np.int64)
        self._make_room()
        entries = (rows[:, None], columns)
        missing = ~self._done[entries]
        if wanted is not None:
            missing &= wanted
        row_at, column_at = missing.nonzero()
        if len(row_at):
            # Rows with missing entries are numbered in their order.
            some = missing.any(axis=1)
            number = some.cumsum() - 1
            self._compute(rows[some], number[row_at], columns[column_at])
        found = self._table.goodput[entries]
        # Entries that other calls computed do not show.
        return (found if wanted is None else np.where(wanted, found, 0.0)), rows

    def estimate(self, row: int, key: ThroughputKey) -> GoodputEstimate | None:
        at = (row, key)
        if at not in self._estimates:
            column = self._column(key)
            self._make_room()
            if not self._done[row, column]:
                self._compute(np.array([row]), np.zeros(1, dtype=np.intp), np.array([column]))
            self._estimates[at] = self._table.estimate(row, column)
        return self._estimates[at]

    def _row(self, model: GoodputModel) -> int:
        known = self._row_of_object.get(id(model))
        if known is not None:
            return known
        row = self._rows.setdefault(model, len(self._models))
        if row == len(self._models):
            self._models.append(model)
        self._row_of_object[id(model)] = row
        self._objects.append(model)
        return row

    def _column(self, key: ThroughputKey) -> int:
        return self._keys.setdefault(key, len(self._keys))

    def _make_room(self) -> None:
        height, width = self._done.shape
        if len(self._models) > height or len(self._keys) > width:
            more = (
                (0, max(2 * len(self._models), 16) - height if len(self._models) > height else 0),
                (0, max(2 * len(self._keys), 16) - width if len(self._keys) > width else 0),
            )
            self._done = np.pad(self._done, more)
            self._table = GoodputTable(
                **{
                    name: np.pad(getattr(self._table, name), more)
                    for name in GoodputTable.__dataclass_fields__
                }
            )
        if len(self._keys) > len(self._sizes):
            self._sizes = np.array([(1 + spread, gpus) for spread, gpus in self._keys], dtype=np.int64)

    def _compute(self, rows: IntArray, jobs: npt.NDArray[np.intp], columns: IntArray) -> None:
        """Compute the entries in `columns` of `rows[jobs]`."""
        models = [self._models[row] for row in rows.tolist()]
        nodes, gpus = self._sizes[columns].T
        asked = at_row, at_column = rows[jobs], columns
        measured = np.array([model.throughput is not None for model in models], dtype=bool)
        possible = (nodes <= gpus) & measured[jobs]
        if not possible.all():
            nodes, gpus, jobs = nodes[possible], gpus[possible], jobs[possible]
            at_row, at_column = at_row[possible], at_column[possible]
        best = (search_geometric if self._geometric else search)(_pairs(models, nodes, gpus, jobs))
        for name in GoodputTable.__dataclass_fields__:
            getattr(self._table, name)[at_row, at_column] = getattr(best, name)
        # Only now: if the search raises, its entries are missing, not zero.
        self._done[asked] = True


def _pairs(
    models: Sequence[GoodputModel | None], nodes: IntArray, gpus: IntArray, jobs: npt.NDArray[np.intp]
) -> Pairs:
    """Return the pairs of `models[jobs]` with configurations of `nodes` and `gpus`."""
    numbers = [(0.0,) * 14 if model is None else _numbers(model) for model in models]
    of_job = np.array(numbers, dtype=np.float64).reshape(-1, 14)[jobs].T
    alpha_n, beta_n, alpha_l, beta_l = of_job[:4]
    remote, size = nodes > 1, gpus.astype(np.float64)
    sync_s = np.where(remote, alpha_n, alpha_l) + np.where(remote, beta_n, beta_l) * np.maximum(
        size - 2.0, 0.0
    )
    rows = np.empty((12, len(jobs)))
    rows[:3], rows[4:6], rows[7:] = of_job[4:7], of_job[7:9], of_job[9:]
    rows[3], rows[6] = np.where(gpus > 1, sync_s, 0.0), size
    return Pairs(rows=rows)


def _numbers(model: GoodputModel) -> tuple[float, ...]:
    """Return α_n, β_n, α_l, β_l, then the rows of `Pairs` for a job; zeros without a throughput model."""
    theta, limits = model.throughput, model.limits
    if theta is None:
        return (0.0,) * 14
    statistics = conservative_statistics(model.statistics, limits.initial_batch_size)
    sqr, var = (0.0, 0.0) if statistics is None else (statistics.sqr, statistics.var)
    return (
        theta.alpha_n,
        theta.beta_n,
        theta.alpha_l,
        theta.beta_l,
        theta.alpha_g,
        theta.beta_g,
        theta.gamma,
        sqr,
        var,
        limits.initial_batch_size,
        limits.max_batch_size or 0,
        limits.min_atomic,
        limits.max_atomic or math.inf,
        math.inf if limits.accumulation else 1,
    )
