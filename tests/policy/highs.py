"""The best answer by HiGHS: one binary variable for each job and each allocation that it could get.

The slow twin of the solver `search`, for problems too large to try every answer (`rules.best`). The rules are
those of `rules.violations`, as linear constraints:

    Σ_a x_ja = 1                                              each job j has one allocation a
    Σ_ja used(a, n, r)·x_ja ≤ room(n, r)                      GPUs, CPUs and memory of each node n
    Σ_{j in limit, a} gpus(a)·x_ja ≤ most                     limits, and the moves of one round
    Σ_{ja new, over several nodes, on n} x_ja + x_old ≤ 1     one job over several nodes on each node
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from pollux_slurm.model import Allocation, GpuLimit, Problem, ProblemJob
from tests.policy import rules

Choice = tuple[ProblemJob, Allocation]


def best(problem: Problem, left_out: Collection[str] = ()) -> tuple[int, float]:
    """Return how many jobs wait at the best answer, and its fitness, as `rules.best` does."""
    choices = [(job, given) for job in problem.jobs for given in dict.fromkeys(rules.choices(problem, job))]
    constraints = _constraints(problem, choices)
    waits = np.array([_waits(problem, job, given) for job, given in choices])
    fewest = round(float(waits @ _solved(waits, constraints)))
    # As many as possible are served; among those answers, the one of most value.
    worth = [rules.worth(problem, job, given) for job, given in choices]
    counted = np.array([job.job_id not in left_out for job, _ in choices])
    values = np.array([_value(problem, job, one) for (job, _), one in zip(choices, worth, strict=True)])
    chosen = _solved(-values * counted, [*constraints, LinearConstraint(waits, ub=fewest)]) > 0.5
    answer = {job.job_id: given for (job, given), taken in zip(choices, chosen, strict=True) if taken}
    assert rules.violations(problem, answer) == []
    picked = np.flatnonzero(chosen & counted)
    weights = [choices[index][0].weight for index in picked]
    return fewest, rules.mean(problem, [worth[index] for index in picked], weights)


def _value(problem: Problem, job: ProblemJob, worth: float) -> float:
    """Return what an allocation adds to the sum that the fitness grows with."""
    p, x = problem.objective.exponent, worth + problem.objective.floor
    return job.weight * (math.log(x) if p == 0 else math.copysign(x**p, p))


def _waits(problem: Problem, job: ProblemJob, given: Allocation) -> int:
    others = {one.job_id: Allocation.of({"": 1}) for one in problem.jobs}
    return rules.num_waiting(problem, {**others, job.job_id: given})


def _constraints(problem: Problem, choices: list[Choice]) -> list[LinearConstraint]:
    rows: list[tuple[list[int], int]] = []
    current = rules.usage(problem, {job.job_id: job.current for job in problem.jobs})
    for node in problem.nodes:
        here = [given.as_dict().get(node.name, 0) for _, given in choices]
        for part, size in enumerate(rules.sizes(node)):
            used = [gpus * rules.need(job)[part] for gpus, (job, _) in zip(here, choices, strict=True)]
            rows.append((used, max(size, current[node.name][part])))
        # Jobs that share a node already may go on to, as long as nothing changes.
        sharing = [
            job for job in problem.jobs if job.current.num_nodes > 1 and node.name in job.current.nodes
        ]
        for old in [*sharing, None]:
            spans = [
                gpus > 0 and given.num_nodes > 1 and (job is old or given != job.current)
                for gpus, (job, given) in zip(here, choices, strict=True)
            ]
            rows.append((spans, 1))
    for limit in problem.limits:
        inside = [job for job in problem.jobs if _is_inside(job, limit)]
        held = sum(job.current.num_gpus for job in inside)
        rows.append(([given.num_gpus * (job in inside) for job, given in choices], max(limit.max_gpus, held)))
    if problem.moving.max_reallocations is not None:
        moved = [bool(job.current) and given != job.current for job, given in choices]
        rows.append((moved, problem.moving.max_reallocations))
    one_each = [[float(job is one) for job, _ in choices] for one in problem.jobs]
    return [
        LinearConstraint(np.array(one_each), lb=1, ub=1),
        LinearConstraint(np.array([row for row, _ in rows], dtype=float), ub=[most for _, most in rows]),
    ]


def _is_inside(job: ProblemJob, limit: GpuLimit) -> bool:
    if limit.job_ids is not None:
        return job.job_id in limit.job_ids
    return bool(getattr(job, limit.kind) == limit.name)


def _solved(cost: np.ndarray, constraints: list[LinearConstraint]) -> np.ndarray:
    found = milp(
        cost,
        integrality=np.ones(len(cost)),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"mip_rel_gap": 0.0},
    )
    assert found.success, found.message
    return np.asarray(found.x)
