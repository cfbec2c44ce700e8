"""Goodput of jobs in configurations: the best batch, and tables over many jobs and configurations.

Legend: J jobs, C configurations; K replicas on N nodes, atomic batch m, accumulation steps s, global batch M.

A batch is allowed when (Pollux section 4.1)

- *fixed* (no `max_batch_size`): M is exactly M0 on any K ≤ M0, in the fewest passes for which
  m = ⌈M0/(K·(s+1))⌉ ≤ max_atomic; more than one pass needs `accumulation`. Local batches may be uneven:
  every pass of every replica gets m examples or one less. Efficiency is 1.
- *adaptive*: M = K·m·(s+1) with M0 ≤ M ≤ M_max and min_atomic ≤ m ≤ max_atomic, and s ≥ 1 for one replica
  with M > M0; s at most what reaches M_max. Or M0 itself, split as above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.goodput.efficiency import cautious, efficiency
from pollux_slurm.goodput.search import Best, Pairs, search, search_geometric
from pollux_slurm.goodput.throughput import iteration_time_s
from pollux_slurm.model import BatchChoice, Configuration, GoodputModel

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Whether GPUs are spread over several nodes, and their number: all that throughput depends on.
Key = tuple[bool, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputEstimate:
    """What one batch choice yields: throughput in examples/s, goodput = throughput × efficiency."""

    batch: BatchChoice
    throughput: float
    efficiency: float
    goodput: float
    step_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GoodputTable:
    """The best batch of each job in each configuration: arrays of shape `(J, C)`.

    `goodput` is 0 where no batch is allowed, the entry was masked out, or the job has no throughput model.
    """

    goodput: FloatArray
    step_time_s: FloatArray
    efficiency: FloatArray
    global_batch_size: IntArray
    atomic_batch_size: IntArray
    accumulation_steps: IntArray

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


def best_batch(model: GoodputModel, configuration: Configuration) -> GoodputEstimate | None:
    """Return the batch with the highest goodput, None without a throughput model or an allowed batch.

    Like `goodput_table` it counts on the low end of the noise scale's interval, where there is one.
    """
    return goodput_table([model], [configuration]).estimate(0, 0)


def evaluate(model: GoodputModel, configuration: Configuration, batch: BatchChoice) -> GoodputEstimate | None:
    """Return what `batch` yields in `configuration`, allowed or not; None without a throughput model."""
    if model.throughput is None or not _is_possible(configuration):
        return None
    step_time_s = float(
        iteration_time_s(
            model.throughput,
            configuration.num_nodes,
            configuration.num_gpus,
            batch.atomic_batch_size,
            batch.accumulation_steps,
        )
    )
    throughput = batch.global_batch_size / step_time_s
    worth = float(efficiency(model.statistics, model.limits.initial_batch_size, batch.global_batch_size))
    return GoodputEstimate(
        batch=batch,
        throughput=throughput,
        efficiency=worth,
        goodput=throughput * worth,
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

    `geometric` tries 50 geometrically spaced batches, as the artifact of the paper does, not all.

    `mask`, of shape `(J, C)`, tells which entries are wanted; the others are 0 and cost nothing. Models are
    taken as they are: run `check_model` on a stranger's first.
    """
    shape = (len(models), len(configurations))
    wanted = np.ones(shape, dtype=bool) if mask is None else mask.copy()
    known = [model is not None and model.throughput is not None for model in models]
    wanted &= np.array(known, dtype=bool)[:, None]
    wanted &= np.array([_is_possible(c) for c in configurations], dtype=bool)[None, :]
    jobs, columns = np.nonzero(wanted)
    pairs = _pairs(models, configurations, jobs, columns)
    best = (search_geometric if geometric else search)(pairs)

    table = {name: np.zeros(shape, dtype=getattr(best, name).dtype) for name in Best.__dataclass_fields__}
    for name, values in table.items():
        values[jobs, columns] = getattr(best, name)
    return GoodputTable(**table)


class TableCache:
    """Best batches by model and (spread, K), kept from one problem to the next.

    A model is its own version: an entry is computed when it is first asked for, and again only for another
    model. It grows with every model that it sees, until `trim`.
    """

    def __init__(self) -> None:
        self._parts = {False: _CachePart(geometric=False), True: _CachePart(geometric=True)}

    def trim(self, num_models: int) -> None:
        """Forget everything if more than twice `num_models`, and some, are kept. Rows are void after it."""
        for part in self._parts.values():
            part.trim(num_models)

    def lookup(
        self, models: Sequence[GoodputModel], keys: Sequence[Key], *, geometric: bool = False
    ) -> tuple[FloatArray, IntArray]:
        """Return goodput, of shape `(models, keys)`, and each model's row for `estimate`."""
        return self._parts[geometric].lookup(models, keys)

    def estimate(
        self, row: int, key: Key, ratio: float = 1.0, *, geometric: bool = False
    ) -> GoodputEstimate | None:
        """Return one entry, on a GPU that is `ratio` times as fast; None where no batch is allowed."""
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
    def __init__(self, *, geometric: bool) -> None:
        self._geometric = geometric
        self._forget()

    def trim(self, num_models: int) -> None:
        if len(self._models) > 2 * num_models + 64:
            self._forget()

    def _forget(self) -> None:
        self._models: list[GoodputModel] = []
        self._rows: dict[GoodputModel, int] = {}
        self._keys: dict[Key, int] = {}
        self._table = goodput_table([], [])
        self._done = np.zeros((0, 0), dtype=bool)

    def lookup(self, models: Sequence[GoodputModel], keys: Sequence[Key]) -> tuple[FloatArray, IntArray]:
        for model in dict.fromkeys(models):
            if self._rows.setdefault(model, len(self._rows)) == len(self._models):
                self._models.append(model)
        for key in keys:
            self._keys.setdefault(key, len(self._keys))
        rows = np.array([self._rows[model] for model in models], dtype=np.int64)
        columns = np.array([self._keys[key] for key in keys], dtype=np.int64)
        self._grow()
        wanted = np.ix_(np.unique(rows), np.unique(columns))
        mask = np.zeros(self._done.shape, dtype=bool)
        mask[wanted] = ~self._done[wanted]
        if mask.any():
            self._compute(mask)
        return self._table.goodput[np.ix_(rows, columns)], rows

    def _compute(self, mask: BoolArray) -> None:
        some = np.flatnonzero(mask.any(axis=1))
        found = goodput_table(
            [self._models[row] for row in some.tolist()],
            [Configuration(num_nodes=1 + spread, num_gpus=gpus) for spread, gpus in self._keys],
            mask=mask[some],
            geometric=self._geometric,
        )
        jobs, columns = np.nonzero(mask[some])
        for name in GoodputTable.__dataclass_fields__:
            getattr(self._table, name)[some[jobs], columns] = getattr(found, name)[jobs, columns]
        self._done |= mask

    def _grow(self) -> None:
        height, width = self._done.shape
        if (height, width) == (len(self._models), len(self._keys)):
            return
        more = ((0, len(self._models) - height), (0, len(self._keys) - width))
        self._done = np.pad(self._done, more)
        self._table = GoodputTable(
            **{name: np.pad(getattr(self._table, name), more) for name in GoodputTable.__dataclass_fields__}
        )

    def estimate(self, row: int, key: Key) -> GoodputEstimate | None:
        if key not in self._keys or not self._done[row, self._keys[key]]:
            self._keys.setdefault(key, len(self._keys))
            self._grow()
            mask = np.zeros(self._done.shape, dtype=bool)
            mask[row, self._keys[key]] = True
            self._compute(mask)
        return self._table.estimate(row, self._keys[key])


def _is_possible(configuration: Configuration) -> bool:
    return 1 <= configuration.num_nodes <= configuration.num_gpus


def _pairs(
    models: Sequence[GoodputModel | None],
    configurations: Sequence[Configuration],
    jobs: npt.NDArray[np.intp],
    columns: npt.NDArray[np.intp],
) -> Pairs:
    real = np.zeros((len(models), 9))
    whole = np.zeros((len(models), 5), dtype=np.int64)
    for row, model in enumerate(models):
        if model is None or model.throughput is None:
            continue
        theta, limits = model.throughput, model.limits
        statistics = cautious(model.statistics, limits.initial_batch_size)
        real[row] = (
            theta.alpha_g,
            theta.beta_g,
            theta.gamma,
            theta.alpha_n,
            theta.beta_n,
            theta.alpha_l,
            theta.beta_l,
            statistics.sqr if statistics is not None else 0.0,
            statistics.var if statistics is not None else 0.0,
        )
        whole[row] = (
            limits.initial_batch_size,
            limits.max_batch_size or 0,
            limits.min_atomic,
            limits.max_atomic or 0,
            limits.accumulation,
        )
    sizes = np.array([(c.num_nodes, c.num_gpus) for c in configurations], dtype=np.int64).reshape(-1, 2)
    nodes, gpus = sizes[columns, 0], sizes[columns, 1]
    of_job, limit = real[jobs].T, whole[jobs].T
    further = np.maximum(gpus - 2, 0)
    alpha = np.where(nodes > 1, of_job[3], of_job[5])
    beta = np.where(nodes > 1, of_job[4], of_job[6])
    return Pairs(
        alpha_g=of_job[0],
        beta_g=of_job[1],
        gamma=of_job[2],
        sync_s=np.where(gpus > 1, alpha + beta * further, 0.0),
        sqr=of_job[7],
        var=of_job[8],
        num_gpus=gpus,
        initial=limit[0],
        largest=limit[1],
        min_atomic=limit[2],
        max_atomic=limit[3],
        accumulation=limit[4] > 0,
    )
