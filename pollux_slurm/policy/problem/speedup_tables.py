"""Goodput and speedup of every job in every configuration that the cluster allows.

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
        for kind in sorted({self.kind_of_node[node] for node in allocation.nodes}):
            row = int(self.rows[job, kind])
            if row < 0:
                return None
            key = (allocation.num_nodes > 1, allocation.num_gpus)
            one = self.cache.estimate(row, key, float(self.ratio[job, kind]), geometric=self.geometric)
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
    seen = 0
    for model in (job.model, *[model for _, model in job.models]) if job.models else (job.model,):
        if model is not None and model.throughput is not None and model.max_gpus_seen > seen:
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
    kinds, sizes, kind_of_node = facts.kinds, facts.sizes, facts.kind_of_node
    current_sizes = [(job.current.num_nodes, job.current.num_gpus) for job in jobs]
    growth = OSDI21_GROWTH if osdi21 else EXPLORATION_GROWTH
    most = [
        exploration_cap(job, gpus, growth=growth) for job, (_, gpus) in zip(jobs, current_sizes, strict=True)
    ]
    caps = np.array(most, dtype=np.int64)
    columns = columns_for(facts, jobs, max(most, default=1), uneven=uneven, pauses=pauses)
    kind, num_gpus = columns.kind, columns.num_gpus

    total = facts.num_gpus
    fair = [max(-(-total // max(len(jobs), 1)), 1)] * len(jobs)
    if fair_shares is not None:
        fair = fair_shares.tolist()
    if fair_share_gpus is not None and not osdi21:
        fair = [fair_share_gpus] * len(jobs)
    bounded = [
        share if job.max_gpus is None or osdi21 else min(share, job.max_gpus)
        for share, job in zip(fair, jobs, strict=True)
    ]
    shares = np.array(bounded, dtype=np.int64)

    keys: dict[ThroughputKey, int] = dict(columns.keys)
    share_keys = [_share_keys(of_kind, max(fair, default=1), bounded, osdi21=osdi21) for of_kind in sizes]
    current_keys = [(num_nodes > 1, gpus) if num_nodes else None for num_nodes, gpus in current_sizes]
    for key in (*(key for found in share_keys for key in found), *filter(None, current_keys), _ONE_GPU):
        keys.setdefault(key, len(keys))
    # The number of each job's current key, None without an allocation.
    current_key = [None if key is None else keys[key] for key in current_keys]

    models, model_row, ratio = _models(jobs, kinds, gpu_speeds, cache)
    wanted = None
    if within_caps:
        always = {_ONE_GPU, *(key for found in share_keys for key in found)}
        wanted = _wanted(jobs, most, current_key, model_row, keys, always, len(models))
    goodput, table_rows = cache.lookup(models, list(keys), geometric=osdi21, wanted=wanted)
    has = model_row >= 0
    rows = np.where(has, table_rows[model_row] if len(models) else -1, -1)
    known: BoolArray = np.any(has, axis=1)
    # Goodput by key: 0 without a model.
    by_key = [
        goodput[model_row[:, index]] * (ratio[:, index] * has[:, index])[:, None]
        if len(models)
        else np.zeros((len(jobs), len(keys)))
        for index in range(len(kinds))
    ]

    of_job = np.zeros((len(jobs), len(num_gpus)))
    share = np.zeros(len(jobs))
    one_gpu = np.zeros(len(jobs))
    for index, of_kind in enumerate(sizes):
        scaled, mine = by_key[index], columns.of_kind[index]
        of_job[:, mine] = scaled[:, columns.key_of[mine]]
        one_gpu = np.where(one_gpu > 0, one_gpu, scaled[:, keys[_ONE_GPU]])
        at_share = _goodput_at_share(scaled, keys, share_keys[index], shares, of_kind, osdi21=osdi21)
        share += (sum(of_kind) / total if total else 1.0) * at_share
    for row in np.flatnonzero(np.logical_and(known, share == 0)):
        # Scaled from the smallest configuration that allows a batch, as if goodput were linear in GPUs.
        possible = np.flatnonzero(of_job[row] > 0)
        if len(possible):
            smallest = possible[np.argmin(num_gpus[possible])]
            share[row] = of_job[row, smallest] * shares[row] / num_gpus[smallest]
        elif within_caps:  # a configuration beyond the caps may allow one
            return build_tables(
                jobs,
                nodes,
                gpu_speeds=gpu_speeds,
                cache=cache,
                osdi21=osdi21,
                uneven=uneven,
                fair_share_gpus=fair_share_gpus,
                fair_shares=fair_shares,
                pauses=pauses,
                facts=facts,
            )
    reference = np.where(known, share, shares.astype(np.float64))
    inverse = np.divide(1.0, reference, out=np.zeros(len(jobs)), where=reference > 0)
    speedup = np.where(known[:, None], of_job, num_gpus[None, :]) * inverse[:, None]
    current = np.array(
        [
            0.0 if at is None else _current_goodput(job.current, row, at, kind_of_node, has, by_key)
            for row, (job, at) in enumerate(zip(jobs, current_key, strict=True))
        ],
        dtype=np.float64,
    )
    return SpeedupTables(
        kinds=kinds,
        columns=columns,
        kind=kind,
        num_nodes=columns.num_nodes,
        per_node=columns.per_node,
        num_gpus=num_gpus,
        goodput=of_job,
        speedup=speedup,
        reference_goodput=reference,
        one_gpu_goodput=one_gpu,
        current_speedup=current * inverse,
        caps=caps,
        cache=cache,
        geometric=osdi21,
        rows=rows,
        ratio=ratio,
        facts=facts,
    )


def _wanted(
    jobs: Sequence[ProblemJob],
    caps: Sequence[int],
    current_key: Sequence[int | None],
    model_row: IntArray,
    keys: dict[ThroughputKey, int],
    always: set[ThroughputKey],
    num_models: int,
) -> BoolArray:
    """Return which keys each model needs, `(models, keys)`: those of `always`, and those of its jobs."""
    of_model = [0] * (num_models + 1)  # the last is for jobs without a model, whose row is −1
    current: tuple[list[int], list[int]] = ([], [])
    for job, cap, at, rows in zip(jobs, caps, current_key, model_row.tolist(), strict=True):
        most = min(job.max_gpus or cap, cap)
        for row in rows:
            of_model[row] = max(of_model[row], most)
            if at is not None:
                current[0].append(row)
                current[1].append(at)
    gpus = np.array([0 if key in always else key[1] for key in keys], dtype=np.int64)
    found: BoolArray = gpus <= np.array(of_model, dtype=np.int64)[:, None]
    found[current] = True
    return found[:-1]


def _current_goodput(
    current: Allocation,
    row: int,
    key: int,
    kind_of_node: dict[str, int],
    has: BoolArray,
    by_key: Sequence[FloatArray],
) -> float:
    """Return the goodput in a job's current allocation, or its GPUs where one of their types has no model.

    `key` is the number of that allocation's key.
    """
    slowest = np.inf
    for kind in {kind_of_node[node] for node, _ in current.gpus_by_node} if len(by_key) > 1 else (0,):
        if not has.item(row, kind):
            return float(current.num_gpus)
        slowest = min(slowest, by_key[kind].item(row, key))
    return slowest


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


def _models(
    jobs: Sequence[ProblemJob],
    kinds: Sequence[str],
    gpu_speeds: Sequence[tuple[str, float]],
    cache: TableCache,
) -> tuple[list[GoodputModel], IntArray, FloatArray]:
    """Return the distinct models, and for each job and GPU type its model's index (−1: none) and a ratio.

    The ratio is 1 on a type that was measured, else that of single-GPU throughputs.
    """
    found: dict[int, int] = {}
    models: list[GoodputModel] = []
    row = np.full((len(jobs), len(kinds)), -1, dtype=np.int64)
    ratio = np.ones((len(jobs), len(kinds)))
    ratios: dict[tuple[str, str], float] = {}

    def index_of(model: GoodputModel) -> int:
        # By identity, which is fast; the cache joins equal models.
        index = found.setdefault(id(model), len(models))
        if index == len(models):
            models.append(model)
        return index

    for index, job in enumerate(jobs):
        if not job.models:
            if job.model is not None and job.model.throughput is not None:
                row[index] = index_of(job.model)
            continue
        measured = {kind: model for kind, model in job.models if _is_measured(model)}
        for column, kind in enumerate(kinds):
            model = measured.get(kind) or (job.model if _is_measured(job.model) else None)
            if model is None and measured:
                reference = next(iter(measured))
                model = measured[reference]
                if (reference, kind) not in ratios:
                    ratios[reference, kind] = _ratio(reference, kind, jobs, dict(gpu_speeds), cache)
                ratio[index, column] = ratios[reference, kind]
            if model is not None:
                row[index, column] = index_of(model)
    return models, row, ratio


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
