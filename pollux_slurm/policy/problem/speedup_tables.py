"""Goodput and speedup of every job in every configuration, and the cap on what it has not measured.

Legend: J jobs, C columns (configurations), T GPU types; K GPUs on N nodes, k = K/N on each.

Throughput depends on whether there are several nodes, not on how many, so goodput is cached by (spread, K).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.goodput import GoodputEstimate, TableCache
from pollux_slurm.goodput.batch_choice_table import ThroughputKey
from pollux_slurm.model import Allocation, GoodputModel, NodeCapacity, ProblemJob
from pollux_slurm.policy.problem.configurations import ConfigurationColumns, columns_for
from pollux_slurm.policy.problem.node_facts import NodeFacts

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

EXPLORATION_GROWTH, OSDI21_GROWTH = 4, 2
"""How many times the most GPUs that a job was measured on it may get: chosen on generated workloads
(docs/evaluation.md); and as in the paper's artifact."""

# A job on one GPU, as (spread, K).
_ONE_GPU: ThroughputKey = (False, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpeedupTables:
    """Hold goodput and speedup of J jobs in C configurations, whatever the jobs' bounds.

    Both are 0 where no batch is allowed. T is the number of GPU types. `build_tables` makes one.

    Args:
        kinds: (T,), the GPU types.
        kind: (C,), the configurations' GPU types, as indices in `kinds`.
        num_nodes: (C,), their nodes.
        per_node: (C,), their GPUs per node; 0 where shares may differ.
        num_gpus: (C,), their GPUs.
        goodput: (J, C), in examples/s.
        speedup: (J, C), goodput over `reference_goodput`.
        reference_goodput: (J,), that of a speedup of 1, in examples/s, or in GPUs for a job without a model.
        one_gpu_goodput: (J,), that of one GPU of the first type that allows a batch there, 0 where none does.
        current_speedup: (J,), that in the job's current allocation, 0 where it has none.
        caps: (J,), the exploration cap: the most GPUs that a job may get.
        cache: The jobs' goodput, for other calls, too.
        geometric: Whether batch sizes are tried as in the paper's artifact.
        rows: (J, T), the jobs' rows in `cache`, −1 without a model.
        ratio: (J, T), the speed of a GPU type relative to the one of the model.
        columns: The configurations themselves.
        facts: What depends on nodes alone.

    Examples:
        >>> tables.num_gpus, tables.speedup[0]
        (array([1, 2, 2]), array([0.25, 0.5 , 0.5 ]))
        >>> tables.speedup_of(0, Allocation.of({"n0": 4}))
        1.0
        >>> tables.estimate(0, Allocation.of({"n0": 4})) is None  # the job has no model
        True
    """

    kinds: tuple[str, ...]
    kind: IntArray
    num_nodes: IntArray
    per_node: IntArray
    num_gpus: IntArray
    goodput: FloatArray
    speedup: FloatArray
    reference_goodput: FloatArray
    one_gpu_goodput: FloatArray
    current_speedup: FloatArray
    caps: IntArray
    cache: TableCache
    geometric: bool
    rows: IntArray
    ratio: FloatArray
    columns: ConfigurationColumns
    facts: NodeFacts

    @property
    def kind_of_node(self) -> dict[str, int]:
        """Each node's GPU type, as its index in `kinds`."""
        return self.facts.kind_of_node

    def estimate(self, job: int, allocation: Allocation) -> GoodputEstimate | None:
        """Return batch and goodput of a job in an allocation, None without a model or an allowed batch.

        Args:
            job: The job's index.
            allocation: Its GPUs by node. Of several GPU types, the slowest one counts.
        """
        found = None
        key, kind_of_node = (allocation.num_nodes > 1, allocation.num_gpus), self.facts.kind_of_node
        for kind in sorted({kind_of_node[node] for node, _ in allocation.gpus_by_node}):
            row = self.rows.item(job, kind)
            if row < 0:
                return None
            one = self.cache.estimate(row, key, self.ratio.item(job, kind), geometric=self.geometric)
            if one is None:
                return None
            if found is None or one.goodput < found.goodput:
                found = one
        return found

    def speedup_of(self, job: int, allocation: Allocation) -> float:
        """Return SPEEDUP of a job in any allocation, whatever its bounds.

        Args:
            job: The job's index.
            allocation: Its GPUs by node.
        """
        if not allocation or not self.reference_goodput[job] > 0:
            return 0.0
        kinds = {self.kind_of_node[node] for node in allocation.nodes}
        if any(self.rows[job, kind] < 0 for kind in kinds):
            return allocation.num_gpus / float(self.reference_goodput[job])
        found = self.estimate(job, allocation)
        return 0.0 if found is None else found.goodput / float(self.reference_goodput[job])


def exploration_cap(job: ProblemJob, current_gpus: int, *, growth: int = EXPLORATION_GROWTH) -> int:
    """Return the most GPUs that a job may get.

    That is `growth` times the most it was measured on, or its current number. A job without measurements may
    have its minimum, at least one GPU, so that it can be measured.
    """
    seen = job.model.max_gpus_seen if job.model is not None and job.model.throughput is not None else 0
    for _, model in job.models:
        if model.throughput is not None and model.max_gpus_seen > seen:
            seen = model.max_gpus_seen
    return max(growth * seen, job.min_gpus, current_gpus, 1)


def build_tables(
    jobs: Sequence[ProblemJob],
    nodes: Sequence[NodeCapacity],
    *,
    gpu_speeds: Sequence[tuple[str, float]] = (),
    cache: TableCache | None = None,
    osdi21: bool = False,
    uneven: bool = False,
    fair_share_gpus: int | None = None,
    fair_shares: IntArray | None = None,
    pauses: bool = False,
    within_caps: bool = False,
    facts: NodeFacts | None = None,
) -> SpeedupTables:
    """Return goodput and speedup of all jobs: SPEEDUP_j = goodput over goodput at the fair share.

    The fair share is ⌈G/J⌉ GPUs, or `fair_share_gpus`, or each job's own of `fair_shares` (J,), at most
    max_gpus. It is on one node where nodes are large enough, else on whole nodes.

    - Where fewer GPUs are faster, the best configuration at or below the fair share counts.
    - Where the fair share allows no batch, the smallest configuration that allows one counts, scaled by GPUs.
    - Of several GPU types, the mean weighted by their GPUs counts.
    - Without a throughput model, speedup is the number of GPUs over the fair share.

    `osdi21` follows the paper's artifact: the fair share is on one node of any size, and 50 batch sizes are
    tried. With `uneven`, shares may differ between nodes. With `pauses`, the last column has no GPUs. With
    `within_caps`, speedups beyond a job's cap are 0 and not computed. `facts` are those of `nodes`, where the
    caller has them.
    """
    cache = TableCache() if cache is None else cache
    facts = NodeFacts(nodes) if facts is None else facts
    cache.trim(sum([max(len(job.models), 1) for job in jobs]))
    widest = max([sizes[0] for sizes in facts.sizes if sizes], default=0)
    growth = OSDI21_GROWTH if osdi21 else EXPLORATION_GROWTH
    caps = [exploration_cap(job, job.current.num_gpus, growth=growth) for job in jobs]
    bounds = [job.max_gpus for job in jobs if job.max_gpus is not None]
    most = within_all_caps = max(caps, default=1)
    if len(bounds) == len(jobs):
        # Of one node, all that the caps allow: the multi-node cap goes by the best of them.
        most = min(most, max([widest, *bounds]))
    columns = columns_for(facts, jobs, most, uneven=uneven, pauses=pauses)

    fair, shares = _fair_shares(jobs, facts, fair_share_gpus, fair_shares, osdi21=osdi21)
    of_shares = [_share_keys(sizes, fair, shares.tolist(), osdi21=osdi21) for sizes in facts.sizes]
    keys = _keys_of(jobs, columns, of_shares)
    models = _models_of(jobs, facts.kinds, gpu_speeds, cache)
    wanted = _wanted(jobs, caps, keys, models) if within_caps else None
    goodput = _goodput_of(models, keys, columns, shares, facts, cache, wanted, osdi21=osdi21)
    is_partial = wanted is not None or most < within_all_caps
    if is_partial and (models.known & (goodput.at_share == 0)).any():
        # A configuration beyond the caps, or beyond all maximums, may allow a batch.
        columns = columns_for(facts, jobs, within_all_caps, uneven=uneven, pauses=pauses)
        keys = _keys_of(jobs, columns, of_shares)
        goodput = _goodput_of(models, keys, columns, shares, facts, cache, None, osdi21=osdi21)

    reference = np.where(models.known, goodput.at_share, shares.astype(np.float64))
    inverse = np.divide(1.0, reference, out=np.zeros(len(jobs)), where=reference > 0)
    speedup = (
        np.where(models.known[:, None], goodput.of_columns, columns.num_gpus[None, :]) * inverse[:, None]
    )
    current = _current_goodput(jobs, keys, models, goodput, facts)
    return SpeedupTables(
        kinds=facts.kinds,
        columns=columns,
        kind=columns.kind,
        num_nodes=columns.num_nodes,
        per_node=columns.per_node,
        num_gpus=columns.num_gpus,
        goodput=goodput.of_columns,
        speedup=speedup,
        reference_goodput=reference,
        one_gpu_goodput=goodput.one_gpu,
        current_speedup=current * inverse,
        caps=np.array(caps, dtype=np.int64),
        cache=cache,
        geometric=osdi21,
        rows=goodput.rows,
        ratio=models.ratio,
        facts=facts,
    )


def _fair_shares(
    jobs: Sequence[ProblemJob],
    facts: NodeFacts,
    fair_share_gpus: int | None,
    fair_shares: IntArray | None,
    *,
    osdi21: bool,
) -> tuple[int, IntArray]:
    """Return the largest fair share, and each job's, which is at most its max_gpus, (J,)."""
    fair = [max(-(-facts.num_gpus // max(len(jobs), 1)), 1)] * len(jobs)
    if fair_shares is not None:
        fair = fair_shares.tolist()
    if fair_share_gpus is not None and not osdi21:
        fair = [fair_share_gpus] * len(jobs)
    bounded = [
        share if job.max_gpus is None or osdi21 else min(share, job.max_gpus)
        for share, job in zip(fair, jobs, strict=True)
    ]
    return max(fair, default=1), np.array(bounded, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Keys:
    """The numbers of all keys; those of fair shares, by GPU type; the number of each job's current one.

    The latter is None without an allocation.
    """

    numbers: dict[ThroughputKey, int]
    of_shares: list[list[ThroughputKey]]
    current: list[int | None]


def _keys_of(
    jobs: Sequence[ProblemJob], columns: ConfigurationColumns, of_shares: list[list[ThroughputKey]]
) -> _Keys:
    numbers: dict[ThroughputKey, int] = dict(columns.keys)
    current = [(job.current.num_nodes > 1, job.current.num_gpus) if job.current else None for job in jobs]
    for key in (*(key for found in of_shares for key in found), *filter(None, current), _ONE_GPU):
        numbers.setdefault(key, len(numbers))
    return _Keys(
        numbers=numbers,
        of_shares=of_shares,
        current=[None if key is None else numbers[key] for key in current],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Models:
    """The distinct models; `row` (J, T) has each job's on each GPU type, −1: none.

    `ratio` (J, T) is 1 on a type that was measured, else that of single-GPU throughputs. `known` (J,): it has
    a model on some type.
    """

    distinct: list[GoodputModel]
    row: IntArray
    ratio: FloatArray
    known: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Goodput:
    """Goodput of the jobs, 0 without a model or an allowed batch; `rows` (J, T) are theirs in the cache.

    `by_key` is of shape (J, keys) for each GPU type. `one_gpu` and `at_share` are of shape (J,).
    """

    rows: IntArray
    by_key: list[FloatArray]
    of_columns: FloatArray
    one_gpu: FloatArray
    at_share: FloatArray


def _goodput_of(
    models: _Models,
    keys: _Keys,
    columns: ConfigurationColumns,
    shares: IntArray,
    facts: NodeFacts,
    cache: TableCache,
    wanted: BoolArray | None,
    *,
    osdi21: bool,
) -> _Goodput:
    """Return the goodput by key, then that of columns, of one GPU, and at the fair `shares` (J,)."""
    goodput, table_rows = cache.lookup(models.distinct, list(keys.numbers), geometric=osdi21, wanted=wanted)
    has, some = models.row >= 0, bool(models.distinct)
    of_columns = np.zeros((len(shares), len(columns.num_gpus)))
    one_gpu, at_share = np.zeros(len(shares)), np.zeros(len(shares))
    by_key = []
    for kind, (sizes, mine) in enumerate(zip(facts.sizes, columns.of_kind, strict=True)):
        of_kind = (
            goodput[models.row[:, kind]] * (models.ratio[:, kind] * has[:, kind])[:, None]
            if some
            else np.zeros((len(shares), len(keys.numbers)))
        )
        by_key.append(of_kind)
        of_columns[:, mine] = of_kind[:, columns.key_of[mine]]
        one_gpu = np.where(one_gpu > 0, one_gpu, of_kind[:, keys.numbers[_ONE_GPU]])
        part = sum(sizes) / facts.num_gpus if facts.num_gpus else 1.0
        at_share += part * _goodput_at_share(
            of_kind, keys.numbers, keys.of_shares[kind], shares, sizes, osdi21=osdi21
        )
    for row in np.flatnonzero(models.known & (at_share == 0)):
        # Scaled from the smallest configuration that allows a batch, as if goodput were linear in GPUs.
        possible = np.flatnonzero(of_columns[row] > 0)
        if len(possible):
            smallest = possible[np.argmin(columns.num_gpus[possible])]
            at_share[row] = of_columns[row, smallest] * shares[row] / columns.num_gpus[smallest]
    return _Goodput(
        rows=np.where(has, table_rows[models.row] if some else -1, -1),
        by_key=by_key,
        of_columns=of_columns,
        one_gpu=one_gpu,
        at_share=at_share,
    )


def _wanted(jobs: Sequence[ProblemJob], caps: Sequence[int], keys: _Keys, models: _Models) -> BoolArray:
    """Return which keys each model needs, `(models, keys)`: those of one GPU, fair shares, and its jobs."""
    of_model = [0] * (len(models.distinct) + 1)  # the last is for jobs without a model, whose row is −1
    current: tuple[list[int], list[int]] = ([], [])
    for job, cap, at, rows in zip(jobs, caps, keys.current, models.row.tolist(), strict=True):
        most = min(job.max_gpus or cap, cap)
        for row in rows:
            of_model[row] = max(of_model[row], most)
            if at is not None:
                current[0].append(row)
                current[1].append(at)
    always = {_ONE_GPU, *(key for found in keys.of_shares for key in found)}
    gpus = np.array([0 if key in always else key[1] for key in keys.numbers], dtype=np.int64)
    found: BoolArray = gpus <= np.array(of_model, dtype=np.int64)[:, None]
    found[current] = True
    return found[:-1]


def _current_goodput(
    jobs: Sequence[ProblemJob], keys: _Keys, models: _Models, goodput: _Goodput, facts: NodeFacts
) -> FloatArray:
    """Return the goodput in each job's current allocation, (J,), 0 where it has none.

    Of several GPU types, the slowest counts. Where one of them has no model, it is the number of GPUs.
    """
    found, kind_of_node = [0.0] * len(jobs), facts.kind_of_node
    for row, (job, key, rows) in enumerate(zip(jobs, keys.current, models.row.tolist(), strict=True)):
        if key is None:
            continue
        kinds = {kind_of_node[node] for node, _ in job.current.gpus_by_node}
        if min([rows[kind] for kind in kinds]) < 0:
            found[row] = job.current.num_gpus
        else:
            found[row] = min([goodput.by_key[kind].item(row, key) for kind in kinds])
    return np.array(found, dtype=np.float64)


def _goodput_at_share(
    goodput: FloatArray,
    keys: dict[ThroughputKey, int],
    share_keys: Iterable[ThroughputKey],
    shares: IntArray,
    sizes: Sequence[int],
    *,
    osdi21: bool,
) -> FloatArray:
    """Return each job's goodput at its fair share on one GPU type, 0 where no batch is allowed there."""
    largest_node = sizes[0] if sizes else int(shares.max(initial=1))
    best = np.zeros(len(shares))
    below: list[ThroughputKey] = []
    for key in share_keys:
        spread, gpus = key
        whole = osdi21 or (
            spread == (gpus > largest_node) and (gpus <= largest_node or gpus % largest_node == 0)
        )
        if whole and not osdi21:
            below.append(key)
        else:
            best = np.where(shares == gpus, np.maximum(best, goodput[:, keys[key]]), best)
    if below:
        found = goodput.take([keys[key] for key in below], axis=1)
        counts = np.array([gpus for _, gpus in below], dtype=np.int64) <= shares[:, None]
        best = np.maximum(best, np.where(counts, found, 0.0).max(axis=1))
    return best


def _share_keys(
    sizes: Sequence[int], fair: int, shares: Iterable[int], *, osdi21: bool
) -> list[ThroughputKey]:
    """Return the keys at or below the fair shares: the best of these is a job's speedup of 1."""
    if osdi21:
        return [(False, share) for share in sorted({*shares})]
    largest_node = sizes[0] if sizes else fair
    counts = {
        *range(1, min(largest_node, fair) + 1),
        *range(2 * largest_node, fair + 1, largest_node),
        *shares,
    }
    return [(gpus > largest_node, gpus) for gpus in sorted(counts)]


def _is_measured(model: GoodputModel | None) -> bool:
    return model is not None and model.throughput is not None


def _models_of(
    jobs: Sequence[ProblemJob],
    kinds: Sequence[str],
    gpu_speeds: Sequence[tuple[str, float]],
    cache: TableCache,
) -> _Models:
    found: dict[int, int] = {}
    models: list[GoodputModel] = []
    rows: list[list[int]] = []
    ratio = np.ones((len(jobs), len(kinds)))
    ratios: dict[tuple[str, str], float] = {}

    def index_of(model: GoodputModel) -> int:
        # By identity, which is fast; the cache joins equal models.
        index = found.get(id(model))
        if index is None:
            index = found[id(model)] = len(models)
            models.append(model)
        return index

    for index, job in enumerate(jobs):
        general = job.model if _is_measured(job.model) else None
        if not job.models:
            rows.append([-1 if general is None else index_of(general)] * len(kinds))
            continue
        measured = {kind: model for kind, model in job.models if model.throughput is not None}
        row = []
        for column, kind in enumerate(kinds):
            model = measured.get(kind, general)
            if model is None and measured:
                reference = next(iter(measured))
                model = measured[reference]
                if (reference, kind) not in ratios:
                    ratios[reference, kind] = _ratio(reference, kind, jobs, dict(gpu_speeds), cache)
                ratio[index, column] = ratios[reference, kind]
            row.append(-1 if model is None else index_of(model))
        rows.append(row)
    found_rows = np.array(rows, dtype=np.int64).reshape(len(jobs), len(kinds))
    return _Models(distinct=models, row=found_rows, ratio=ratio, known=np.any(found_rows >= 0, axis=1))


def _ratio(
    reference: str, kind: str, jobs: Sequence[ProblemJob], speeds: dict[str, float], cache: TableCache
) -> float:
    """Return the speed of one GPU of `kind` over one of `reference`: configured, else measured, else 1."""
    if reference in speeds and kind in speeds:
        return speeds[kind] / speeds[reference]
    measured = []
    for job in jobs:
        models = dict(job.models)
        pair = [models.get(reference), models.get(kind)]
        both = [model for model in pair if model is not None and model.throughput is not None]
        if len(both) == 2:
            goodput, _ = cache.lookup(both, [(False, 1)])
            if (goodput > 0).all():
                measured.append(float(goodput[1, 0] / goodput[0, 0]))
    return statistics.median(measured) if measured else 1.0
