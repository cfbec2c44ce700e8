"""What a job needs to be finished: its remaining work, and its predicted rates on the sizes that it may have.

Work counts with a reserve, so that it is done in time with a probability of 90 %. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pollux_slurm.goodput import TableCache
from pollux_slurm.model import Problem, ProblemJob
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
# The error of a good model; that of one that other jobs of the kind have measured.
_USUAL_ERROR, _TAUGHT_ERROR = 0.05, 0.1
# A plan reserves so many moves beside its own: the policy gives idle GPUs, and takes them back.
_RESERVED_MOVES = 2.0

NO_LENGTH = (
    "it declares no number of epochs (remaining_epochs_until), and no completed job of its kind tells its length"
)
NO_LENGTH_YET = (
    "its length is not known before its first epoch has ended, as no completed job of its kind tells it"
)
NO_SPEED = "no step of it has been measured, nor of an earlier job of its kind"


def remaining_work(job: ProblemJob) -> float | None:
    """Return the useful examples that a job has still to process, None where that is not known.

    Its own declaration counts once a part of it is done, before that the length of its kind.
    """
    done, declared, progress = job.epochs_done, job.epochs_declared, job.progress or 0.0
    if done is not None and declared is not None and progress > 0 and 0 < done < declared:
        return progress * (declared - done) / done
    return None if job.expected_work is None else max(job.expected_work - progress, 0.0)


def why_not_kept(job: ProblemJob) -> str | None:
    """Return why a job's length or model does not count for a promise, None where both do."""
    if job.declaration_doubt is not None:
        return f"its declared epochs do not count: {job.declaration_doubt}"
    if job.model_doubt is not None:
        return f"its model does not count: {job.model_doubt}"
    if job.prediction_error > MAX_ERROR:
        return f"its predictions are off by {100 * job.prediction_error:.0f} %, more than {100 * MAX_ERROR:.0f} %"
    return None


def find_needs(
    problem: Problem, jobs: Sequence[ProblemJob], cache: TableCache | None = None
) -> dict[str, Need | str]:
    """Return what each of `jobs` needs, by job id; a text says what is missing."""
    if not jobs:
        return {}
    facts = NodeFacts(problem.nodes)
    tables = build_tables(jobs, problem.nodes, gpu_speeds=problem.gpu_speeds, cache=cache, facts=facts)
    goodput = capped_speedup(jobs, tables) * tables.reference_goodput[:, None]
    usable = packing_columns(problem, jobs, tables)
    found: dict[str, Need | str] = {}
    for row, job in enumerate(jobs):
        work = remaining_work(job)
        rates = _rates(problem, job, tables, np.where(usable[row], goodput[row], 0.0), row)
        if not rates or (tables.rows[row] < 0).all():
            found[job.job_id] = NO_SPEED
        elif work is None:
            found[job.job_id] = NO_LENGTH if job.epochs_declared is None and job.progress else NO_LENGTH_YET
        else:
            found[job.job_id] = _need(job, work, rates)
    return found


def _need(job: ProblemJob, work: float, rates: tuple[tuple[int, float], ...]) -> Need:
    by_s = math.inf if job.finish_by_s is None else job.finish_by_s
    error = max(job.prediction_error, _USUAL_ERROR if job.progress else _TAUGHT_ERROR)
    return Need(
        job_id=job.job_id,
        work=work * (1.0 + _QUANTILE * error),
        finish_by_s=by_s - _RESERVED_MOVES * job.restart_delay_s,
        rates=rates,
        num_gpus=job.current.num_gpus,
        delay_s=job.restart_delay_s,
    )


def _rates(
    problem: Problem, job: ProblemJob, tables: SpeedupTables, goodput: FloatArray, row: int
) -> tuple[tuple[int, float], ...]:
    """Return the sizes of a job at which more GPUs are faster, and its rates on the slowest GPU type."""
    nodes = [
        node.name
        for node in problem.nodes
        if node.num_gpus and (job.partition_nodes is None or node.name in job.partition_nodes)
    ]
    kinds = {tables.kind_of_node[name] for name in nodes}
    most = min(job.max_gpus or tables.caps[row], tables.caps[row])
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
