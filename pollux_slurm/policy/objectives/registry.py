"""The objectives by name. Each is a function from problem, jobs and tables to the terms of its mean.

All are generalized means over x = f·SPEEDUP + floor with an exponent and a weight for each job, so one solver
serves all. Legend: J jobs, C columns of the tables, G GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Problem, ProblemJob
from pollux_slurm.policy.objectives.job_values import (
    Scores,
    attained_work_s,
    current_speedups,
    job_weights,
    prediction_discount,
    seconds_left,
    speedup_of_one_gpu,
)
from pollux_slurm.policy.objectives.moving_rules import hysteresis_factors
from pollux_slurm.policy.objectives.multi_node_cap import capped_speedup
from pollux_slurm.policy.objectives.packing_preference import packing_columns
from pollux_slurm.policy.objectives.price_rank import price_rank
from pollux_slurm.policy.objectives.restart_penalty import (
    in_place_penalties,
    kept_of_horizon,
    kept_until_end,
    paper_penalty,
    penalty_of_ways,
    restart_delays_s,
    restart_penalties,
)
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables

FloatArray = npt.NDArray[np.float64]

OSDI21_DELAY_S = 30.0
OSDI21_FLOOR = 1e-3
# The horizon over which a move must pay under `attained_work`: chosen on generated workloads
# (docs/evaluation.md).
_HORIZON_S = 250.0

ObjectiveFunction = Callable[[Problem, Sequence[ProblemJob], SpeedupTables], Scores]


def generalized_mean(problem: Problem, jobs: Sequence[ProblemJob], tables: SpeedupTables) -> Scores:
    """Return the terms of the default: the paper's objective without its pathologies (docs/policy.md).

    Args:
        problem: The problem, for its objective's numbers.
        jobs: The J jobs that take part.
        tables: Their goodput and speedup, (J, C).

    Examples:
        >>> generalized_mean(problem, jobs, tables).exponent
        -1.0
    """
    discount, left_s = prediction_discount(jobs, tables), seconds_left(jobs, tables)

    def penalties(in_place: bool) -> FloatArray:
        if in_place:
            # It trains until the move, also where its present size is outside its bounds.
            found = in_place_penalties(
                jobs,
                problem.objective,
                problem.moving,
                speedup=tables.speedup,
                current_speedup=tables.current_speedup,
                num_gpus=tables.num_gpus,
                left_s=left_s,
            )
        else:
            found = restart_penalties(jobs, problem.objective, problem.moving, left_s)
        return found * discount

    penalty, in_place_penalty = penalty_of_ways(jobs, penalties)
    return Scores(
        exponent=problem.objective.exponent,
        floor=problem.objective.floor,
        scale=1.0,
        weight=job_weights(jobs),
        speedup=tables.speedup,
        current_speedup=current_speedups(jobs, tables),
        penalty=penalty,
        serves_all=True,
        in_place_penalty=in_place_penalty,
    )


def osdi21(problem: Problem, jobs: Sequence[ProblemJob], tables: SpeedupTables) -> Scores:
    """Return the terms of the paper's artifact, unchanged.

    p = −1, x = f·SPEEDUP·nodes/G + 1e-3, δ = 30 s for all jobs, f < 1 for waiting jobs, too. No weights. A
    move in place, which the artifact does not have, costs the job's own delay.

    Args:
        problem: The problem, for its nodes.
        jobs: The J jobs that take part.
        tables: Their goodput and speedup, (J, C).

    Examples:
        >>> osdi21(problem, jobs, tables).scale  # 2 nodes of 8 GPUs
        0.25
    """
    total = sum(node.num_gpus for node in problem.nodes)
    with_gpus = sum(node.num_gpus > 0 for node in problem.nodes)
    penalty, in_place_penalty = penalty_of_ways(
        jobs, lambda in_place: _osdi21_penalties(jobs, in_place=in_place)
    )
    return Scores(
        exponent=-1.0,
        floor=OSDI21_FLOOR,
        scale=with_gpus / total if total else 1.0,
        weight=np.ones(len(jobs)),
        speedup=tables.speedup,
        current_speedup=current_speedups(jobs, tables),
        penalty=penalty,
        serves_all=False,
        in_place_penalty=in_place_penalty,
    )


def attained_work(problem: Problem, jobs: Sequence[ProblemJob], tables: SpeedupTables) -> Scores:
    """Return the terms of `attained-work`: p = 0.7, speedups over one GPU, less weight for much work done.

    Jobs declare nothing: w = max(W, 60 s)^−0.25, where W = progress/g(1) is the work done in one-GPU seconds.
    On change, f = 1 − δ/H with the horizon H = 250 s, longer above δ = 30 s (`horizon_s`), less for a job
    whose end is known to be near. Only configurations that pack well are used, and jobs that never ran on
    several nodes have the multi-node cap.

    Args:
        problem: The problem, for its nodes and moving rules.
        jobs: The J jobs that take part.
        tables: Their goodput and speedup, (J, C).

    Examples:
        >>> attained_work(problem, jobs, tables).exponent
        0.7
    """
    work = np.array([attained_work_s(job, tables, row) for row, job in enumerate(jobs)], dtype=np.float64)
    weight = job_weights(jobs) * np.maximum(work, 60.0) ** -0.25
    unit, keep = speedup_of_one_gpu(tables), hysteresis_factors(jobs, problem.moving)
    discount, left_s = prediction_discount(jobs, tables), seconds_left(jobs, tables)

    def penalty(in_place: bool) -> FloatArray:
        delay = restart_delays_s(jobs, in_place=in_place)
        move = kept_of_horizon(delay, _HORIZON_S, jobs)[:, None]
        return keep[:, None] * np.minimum(move, kept_until_end(left_s, delay[:, None])) * discount

    by_requeue, in_place_penalty = penalty_of_ways(jobs, penalty)
    return Scores(
        exponent=0.7,
        floor=problem.objective.floor,
        scale=1.0,
        weight=weight,
        speedup=capped_speedup(jobs, tables) / unit[:, None],
        current_speedup=current_speedups(jobs, tables) / unit,
        penalty=by_requeue,
        serves_all=True,
        units=1.0 / unit,
        usable=packing_columns(problem, jobs, tables),
        in_place_penalty=in_place_penalty,
    )


def _osdi21_penalties(jobs: Sequence[ProblemJob], *, in_place: bool) -> FloatArray:
    own = [job.in_place_delay_s if in_place else None for job in jobs]
    delay_s = np.array([OSDI21_DELAY_S if one is None else one for one in own], dtype=np.float64)
    age_s = np.array([job.age_s for job in jobs], dtype=np.float64)
    restarts = np.array([job.num_restarts for job in jobs], dtype=np.float64)
    return paper_penalty(age_s, OSDI21_DELAY_S * restarts, delay_s)


OBJECTIVES: Mapping[str, ObjectiveFunction] = MappingProxyType(
    {
        "generalized-mean": generalized_mean,
        "osdi21": osdi21,
        "price-rank": price_rank,
        "attained-work": attained_work,
    }
)
