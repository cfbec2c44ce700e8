"""What a job needs to be finished: its remaining work, and its predicted rates on the sizes that it may have.

Work counts with a reserve, so that it is done in time with a probability of 90 %. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pollux_slurm.goodput import TableCache
from pollux_slurm.model import GradientStatistics, Problem, ProblemJob, PromiseState
from pollux_slurm.policy.objectives.job_values import declared_remaining_s, remaining_by_kind_s
from pollux_slurm.policy.objectives.multi_node_cap import capped_speedup
from pollux_slurm.policy.objectives.packing_preference import packing_columns
from pollux_slurm.policy.problem.node_facts import NodeFacts
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables, build_tables
from pollux_slurm.policy.promises.plans import Need

FloatArray = npt.NDArray[np.float64]

MAX_ERROR = 0.3
"""A model whose recent predictions are off by more than this part keeps no promise."""

# The 90 % quantile of a normal distribution over its mean absolute value: 1.28·√(π/2).
_QUANTILE = 1.6
# The error of a good model.
_USUAL_ERROR = 0.05
# Moves that a plan reserves beside its own: the policy gives idle GPUs, and takes them back. A job that can
# have a single size has none of these.
_RESERVED_MOVES = 2.0
# A promise takes no size on which a GPU does less than this part of what it does where it does most. The part
# is larger for a new one: the user's other jobs, present and to come, pay for the rest.
_LEAST_EFFICIENCY, _LEAST_EFFICIENCY_OF_NEW = 0.5, 0.92

NO_LENGTH = (
    "it declares no epochs (remaining_epochs_until), and no completed job of its kind tells its length"
)
NO_LENGTH_YET = (
    "its length is not known before its first epoch has ended, as no completed job of its kind tells it"
)
NO_SPEED = "no step of it has been measured, nor of an earlier job of its kind"


def remaining_work(job: ProblemJob) -> float | None:
    """Return the useful examples that a job has still to process, None where that is not known.

    Its own declaration counts once a part of it is done, before that the greatest length of its kind.
    """
    # At one example a second, seconds are examples; without progress, they say nothing.
    if left := declared_remaining_s(job, 1.0):
        return left
    by_kind = remaining_by_kind_s(job, 1.0)
    return None if by_kind is None else by_kind[1]


def why_not_kept(job: ProblemJob) -> str | None:
    """Return why a job's length or model does not count for a promise, None where both do."""
    if job.declaration_doubt is not None:
        return f"its declared epochs do not count: {job.declaration_doubt}"
    if job.model_doubt is not None:
        return f"its model does not count: {job.model_doubt}"
    if job.prediction_error > MAX_ERROR:
        return f"its predictions are off by {job.prediction_error:.0%}, more than {MAX_ERROR:.0%}"
    return None


def find_needs(
    problem: Problem, jobs: Sequence[ProblemJob], cache: TableCache | None = None
) -> dict[str, Need | str]:
    """Return what each of `jobs` needs, by job id; a text says what is missing."""
    if not jobs:
        return {}
    # Each job as it will be: one row for each part of its training that is left.
    parts = [(job, part, share) for job in jobs for share, part in parts_left(job)]
    rows = [part for _, part, _ in parts]
    facts = NodeFacts(problem.nodes)
    tables = build_tables(rows, problem.nodes, gpu_speeds=problem.gpu_speeds, cache=cache, facts=facts)
    goodput = capped_speedup(rows, tables) * tables.reference_goodput[:, None]
    goodput = np.where(packing_columns(problem, rows, tables), goodput, 0.0)
    found: dict[str, Need | str] = {}
    for job in jobs:
        work = remaining_work(job)
        mine = [row for row, (of, _, _) in enumerate(parts) if of is job]
        row = mine[0]
        shares = np.array([parts[row][2] for row in mine])
        with np.errstate(divide="ignore"):
            mean = 1.0 / (shares[:, None] / goodput[mine]).sum(axis=0)
        is_accepted = job.promise is PromiseState.ACCEPTED
        least = _LEAST_EFFICIENCY if is_accepted else _LEAST_EFFICIENCY_OF_NEW
        rates = _efficient(_rates(problem, job, tables, mean, row), least)
        if not rates or (tables.rows[row] < 0).all():
            found[job.job_id] = NO_SPEED
        elif work is None:
            is_silent = job.progress is not None and job.epochs_declared is None
            found[job.job_id] = NO_LENGTH if is_silent else NO_LENGTH_YET
        else:
            found[job.job_id] = _need(job, work, rates)
    return found


def parts_left(job: ProblemJob) -> list[tuple[float, ProblemJob]]:
    """Return the parts of a training that are left, each with its share of the remaining work.

    Gradient noise grows during a training, and with it the rate at large batches. It is that of its kind at
    the same part of the training; without a course it stays as it is.
    """
    course, left = job.course, remaining_work(job)
    if course is None or not course.statistics or not left:
        return [(1.0, job)]
    done = job.progress or 0.0
    scale = course.work / (done + left)
    begins = [begin for begin, _ in course.statistics]
    found = []
    for begin, end, (_, statistics) in zip(begins, [*begins[1:], math.inf], course.statistics, strict=True):
        share = (min(end, course.work) - max(begin, done * scale)) / (left * scale)
        if share > 0:
            found.append((share, _with_statistics(job, statistics)))
    total = sum(share for share, _ in found)
    return [(share / total, part) for share, part in found] or [(1.0, job)]


def _with_statistics(job: ProblemJob, statistics: GradientStatistics) -> ProblemJob:
    models = [replace(model, statistics=statistics) for _, model in job.models]
    return replace(
        job,
        model=None if job.model is None else replace(job.model, statistics=statistics),
        models=tuple((kind, model) for (kind, _), model in zip(job.models, models, strict=True)),
    )


def _need(job: ProblemJob, work: float, rates: tuple[tuple[int, float], ...]) -> Need:
    by_s = math.inf if job.finish_by_s is None else job.finish_by_s
    error = max(job.prediction_error, _USUAL_ERROR)
    moves_s = (_RESERVED_MOVES if len(rates) > 1 else 0.0) * job.restart_delay_s
    left_s = math.inf if job.time_left_s is None else job.time_left_s
    return Need(
        job_id=job.job_id,
        work=work * (1.0 + _QUANTILE * error),
        finish_by_s=by_s - moves_s,
        rates=rates,
        num_gpus=job.current.num_gpus,
        delay_s=job.restart_delay_s,
        time_left_s=left_s - moves_s,
    )


def _rates(
    problem: Problem, job: ProblemJob, tables: SpeedupTables, goodput: FloatArray, row: int
) -> tuple[tuple[int, float], ...]:
    """Return the sizes of a job that pack well, and its rates there on the slowest GPU type."""
    nodes = [
        node.name
        for node in problem.nodes
        if node.num_gpus and (job.partition_nodes is None or node.name in job.partition_nodes)
    ]
    kinds = {tables.kind_of_node[name] for name in nodes}
    cap = int(tables.caps[row])
    most = min(job.max_gpus or cap, cap)
    best: dict[int, dict[int, float]] = {kind: {} for kind in kinds}
    for kind, of_nodes, gpus, rate in zip(
        tables.kind.tolist(),
        tables.num_nodes.tolist(),
        tables.num_gpus.tolist(),
        goodput.tolist(),
        strict=True,
    ):
        if kind in kinds and job.min_gpus <= gpus <= most and of_nodes <= (1 if job.one_node else len(nodes)):
            best[kind][gpus] = max(best[kind].get(gpus, 0.0), rate)
    found: list[tuple[int, float]] = []
    for gpus in sorted({size for sizes in best.values() for size in sizes}):
        rate = min(sizes.get(gpus, 0.0) for sizes in best.values())
        if rate > (found[-1][1] if found else 0.0):
            found.append((gpus, rate))
    return tuple(found)


def _efficient(rates: tuple[tuple[int, float], ...], least: float) -> tuple[tuple[int, float], ...]:
    """Return the sizes on which a GPU does at least a part `least` of what it does where it does most."""
    most_per_gpu = max((rate / gpus for gpus, rate in rates), default=0.0)
    return tuple((gpus, rate) for gpus, rate in rates if rate / gpus >= least * most_per_gpu)
