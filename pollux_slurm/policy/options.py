"""What each job could get, and what it would be worth: configurations, speedups, values.

Legend: J jobs, C configurations; K GPUs on N nodes, k = K/N on each.

Only what Slurm can express is offered: one node, or the same number of GPUs on each of several. What a job
holds already is always an option, even or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.goodput import GoodputEstimate, GoodputTable, goodput_table
from pollux_slurm.model import Configuration, NodeCapacity, Objective, ProblemJob
from pollux_slurm.policy.objective import restart_penalty, values

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Up to this many nodes every equal share of a node is offered; beyond, whole nodes only.
MAX_NODES_SPLIT = 8
# Between two choices that the penalty makes worthless, the one with more speedup is better by this much.
_PREFERENCE = 1e-11


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One thing a job could get: `per_node` GPUs on each of N nodes, what it holds now, or nothing (K = 0).

    `value` is what it adds to the objective's sum. For a waiting job, nothing is worth less than all that
    other jobs could gain by it: as many jobs as can be served are, before any gets more.
    """

    num_nodes: int
    per_node: int
    num_gpus: int
    speedup: float
    penalty: float
    value: float
    stays: bool = False

    @property
    def configuration(self) -> Configuration:
        return Configuration(num_nodes=self.num_nodes, num_gpus=self.num_gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """All options of one job, best first, those that another beats in every respect left out.

    `exploration_cap` is the most GPUs that its measurements allow it.
    """

    job: ProblemJob
    row: int
    options: tuple[Option, ...]
    exploration_cap: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tables:
    """Speedups of J jobs in C configurations, limits aside: 0 where a configuration allows no batch.

    `num_nodes`, `per_node` (0 where uneven) and `num_gpus` have shape `(C,)`, `speedup` `(J, C)`.
    """

    num_nodes: IntArray
    per_node: IntArray
    num_gpus: IntArray
    speedup: FloatArray
    goodput: GoodputTable
    column: dict[Configuration, int]

    def estimate(self, row: int, configuration: Configuration) -> GoodputEstimate | None:
        """Return batch and goodput of a job in a configuration, None without a model or an allowed batch."""
        column = self.column.get(configuration)
        return None if column is None else self.goodput.estimate(row, column)


def exploration_cap(job: ProblemJob) -> int:
    """Return the most GPUs a job may be given: twice the most it was measured on, and what it holds.

    A job without measurements gets its minimum, one GPU at least, so that it can be measured.
    """
    seen = job.model.max_gpus_seen if job.model is not None and job.model.throughput is not None else 0
    return max(2 * seen, job.min_gpus, job.current.num_gpus, 1)


def build_tables(jobs: Sequence[ProblemJob], nodes: Sequence[NodeCapacity]) -> Tables:
    """Return the speedups of all jobs: SPEEDUP_j = goodput over goodput at the fair share.

    The fair share is ⌈G/J⌉ GPUs, no more than max_gpus: on one node as far as nodes are large enough, else on
    whole nodes. Where fewer GPUs are faster, the best at or below it counts; where no batch is allowed there,
    the smallest configuration that allows one counts, in proportion to its GPUs. Without a throughput model,
    speedup is the number of GPUs over the fair share.
    """
    sizes = sorted((node.num_gpus for node in nodes if node.num_gpus > 0), reverse=True)
    fair = max(-(-sum(sizes) // max(len(jobs), 1)), 1)
    most = max([exploration_cap(job) for job in jobs], default=1)
    offered = _offered(sizes, most)
    shares = [fair if job.max_gpus is None else min(fair, job.max_gpus) for job in jobs]
    widest = sizes[0] if sizes else fair
    packed = [*range(1, min(widest, fair) + 1), *range(2 * widest, fair + 1, widest), *sorted(set(shares))]
    held = [job.current.configuration for job in jobs if job.current]
    packs = [Configuration(num_nodes=-(-gpus // widest), num_gpus=gpus) for gpus in packed]
    configurations = list(dict.fromkeys([*offered, *packs, *held]))
    num_nodes = np.array([c.num_nodes for c in configurations], dtype=np.int64)
    num_gpus = np.array([c.num_gpus for c in configurations], dtype=np.int64)
    known = np.array([job.model is not None and job.model.throughput is not None for job in jobs], dtype=bool)
    goodput = goodput_table([job.model for job in jobs], configurations)

    own_share = np.array(shares, dtype=np.int64)
    is_packed = num_nodes == -(-num_gpus // widest)
    is_whole = is_packed & ((num_gpus <= widest) | (num_gpus % widest == 0))
    within = is_whole[None, :] & (num_gpus[None, :] <= own_share[:, None])
    within |= is_packed[None, :] & (num_gpus[None, :] == own_share[:, None])
    base = np.where(within, goodput.goodput, 0.0).max(axis=1, initial=0.0)
    for row in np.flatnonzero(known & (base == 0)):
        # The smallest batch-wise possible configuration stands in, as if speed were linear in GPUs.
        possible = np.flatnonzero(goodput.goodput[row] > 0)
        if len(possible):
            smallest = possible[np.argmin(num_gpus[possible])]
            base[row] = goodput.goodput[row, smallest] * own_share[row] / num_gpus[smallest]
    with_model = np.divide(
        goodput.goodput, base[:, None], out=np.zeros_like(goodput.goodput), where=base[:, None] > 0
    )
    linear = num_gpus[None, :] / own_share[:, None]
    return Tables(
        num_nodes=num_nodes,
        per_node=np.where(num_gpus % np.maximum(num_nodes, 1) == 0, num_gpus // np.maximum(num_nodes, 1), 0),
        num_gpus=num_gpus,
        speedup=np.where(known[:, None], with_model, linear),
        goodput=goodput,
        column={configuration: index for index, configuration in enumerate(configurations)},
    )


def build_options(jobs: Sequence[ProblemJob], tables: Tables, objective: Objective) -> list[JobOptions]:
    """Return the options of each job, in the order of `jobs`; pinned jobs have only what they hold."""
    penalties = np.array([restart_penalty(job) for job in jobs], dtype=np.float64)
    changed = values(objective, tables.speedup * (penalties[:, None] + _PREFERENCE))
    worst = float(values(objective, 0.0))
    span = float(values(objective, tables.speedup.max(initial=1.0))) - worst
    nothing = worst - 2.0 * (len(jobs) + 1) * span
    result = []
    for row, job in enumerate(jobs):
        cap = exploration_cap(job)
        choices = []
        if job.current:
            own = tables.column[job.current.configuration]
            within = job.min_gpus <= job.current.num_gpus <= (job.max_gpus or job.current.num_gpus)
            # What breaks the job's own limits is worth nothing, so that anything else is preferred to it.
            speedup = float(tables.speedup[row, own]) if within or job.pinned else 0.0
            choices.append(
                Option(
                    num_nodes=job.current.num_nodes,
                    per_node=0,
                    num_gpus=job.current.num_gpus,
                    speedup=speedup,
                    penalty=1.0,
                    value=float(values(objective, speedup)),
                    stays=True,
                )
            )
        else:
            choices.append(
                Option(
                    num_nodes=0,
                    per_node=0,
                    num_gpus=0,
                    speedup=0.0,
                    penalty=1.0,
                    value=nothing,
                    stays=True,
                )
            )
        if not job.pinned:
            limit = cap if job.max_gpus is None else min(cap, job.max_gpus)
            usable = (
                (tables.per_node > 0)
                & (tables.num_gpus >= job.min_gpus)
                & (tables.num_gpus <= limit)
                & (tables.speedup[row] > 0)
            )
            for column in _undominated(tables, usable, changed[row]):
                choices.append(
                    Option(
                        num_nodes=int(tables.num_nodes[column]),
                        per_node=int(tables.per_node[column]),
                        num_gpus=int(tables.num_gpus[column]),
                        speedup=float(tables.speedup[row, column]),
                        penalty=float(penalties[row]),
                        value=float(changed[row, column]),
                    )
                )
        choices.sort(key=lambda o: (-o.value, not o.stays, o.num_gpus, o.num_nodes))
        result.append(JobOptions(job=job, row=row, options=tuple(choices), exploration_cap=cap))
    return result


def only_what_it_holds(job: ProblemJob) -> JobOptions:
    """Return the one option of a job that takes part in the placement but not in the objective."""
    held = job.current
    stay = Option(
        num_nodes=held.num_nodes,
        per_node=0,
        num_gpus=held.num_gpus,
        speedup=0.0,
        penalty=1.0,
        value=0.0,
        stays=True,
    )
    return JobOptions(job=job, row=-1, options=(stay,), exploration_cap=held.num_gpus)


def _undominated(tables: Tables, usable: BoolArray, value: FloatArray) -> list[int]:
    """Return the columns that beat every other one which fits wherever they do (N' ≤ N and k' ≤ k)."""
    columns = np.flatnonzero(usable)
    order = columns[np.lexsort((tables.per_node[columns], tables.num_nodes[columns]))]
    best: dict[int, float] = {}
    kept = []
    for column in order.tolist():
        share = int(tables.per_node[column])
        rival = max((found for k, found in best.items() if k <= share), default=-np.inf)
        if value[column] > rival:
            kept.append(column)
            best[share] = float(value[column])
    return kept


def _offered(sizes: Sequence[int], most: int) -> list[Configuration]:
    """Return every count up to a node, then equal counts over several, up to `most` GPUs."""
    if not sizes:
        return []
    found = [Configuration(num_nodes=1, num_gpus=k) for k in range(1, sizes[0] + 1) if k <= most]
    whole = sorted(set(sizes))
    for num_nodes in range(2, len(sizes) + 1):
        shares = range(1, sizes[0] + 1) if num_nodes <= MAX_NODES_SPLIT else whole
        found += [
            Configuration(num_nodes=num_nodes, num_gpus=num_nodes * k)
            for k in shares
            if k <= sizes[num_nodes - 1] and num_nodes * k <= most
        ]
    return found
