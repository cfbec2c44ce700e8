"""The values of several allocations of one problem on the scale of its objective. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pollux_slurm.goodput import TableCache
from pollux_slurm.model import Allocation, Problem
from pollux_slurm.policy.decide import build_candidates_of_participants
from pollux_slurm.policy.participation.problem_checks import check_problem, find_exclusions


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The value of one set of allocations: its fitness, and f·SPEEDUP of each job."""

    fitness: float
    speedups: Mapping[str, float]


def evaluate(
    problem: Problem,
    *answers: Mapping[str, Allocation],
    without: Collection[str] = (),
    tables: TableCache | None = None,
) -> tuple[Evaluation, ...]:
    """Return the evaluation of each answer, feasible or not, over the same jobs.

    Jobs in `without` and jobs that cannot be scheduled are left out. A job that an answer does not name gets
    nothing, nor does one that waits behind others of its user. A job that keeps its allocation pays no
    penalty. `tables` caches goodput tables between calls. Raises `InvalidProblemError` if the problem
    contradicts itself.
    """
    check_problem(problem)
    left_out = {*without, *find_exclusions(problem)}
    jobs = [job for job in problem.jobs if job.job_id not in left_out]
    candidates = build_candidates_of_participants(
        dataclasses.replace(problem, jobs=tuple(jobs)), jobs, tables
    )
    found = []
    for answer in answers:
        speedups = {
            job.job_id: candidates.penalised(row, answer.get(job.job_id, Allocation()))
            for row, job in enumerate(candidates.jobs)
        }
        fitness = candidates.scores.fitness(list(speedups.values()))
        found.append(Evaluation(fitness=fitness, speedups={job.job_id: 0.0 for job in jobs} | speedups))
    return tuple(found)
