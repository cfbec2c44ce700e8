"""What several answers to one problem are worth, beside each other, on the scale of its objective. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pollux_slurm.goodput import TableCache
from pollux_slurm.model import Allocation, Problem
from pollux_slurm.policy.decide import build_candidates_of_participants
from pollux_slurm.policy.participation.admission import check_problem, find_exclusions


@dataclass(frozen=True, slots=True, kw_only=True)
class Appraisal:
    """What one answer is worth: its fitness, and f·SPEEDUP of each job as the objective sees it."""

    fitness: float
    speedups: Mapping[str, float]


def appraise(
    problem: Problem,
    *answers: Mapping[str, Allocation],
    without: Collection[str] = (),
    tables: TableCache | None = None,
) -> tuple[Appraisal, ...]:
    """Return the appraisal of each answer, feasible or not, over the same jobs.

    Left out are the jobs named in `without` and those that cannot be scheduled. A job that an answer does not
    name has nothing in it, nor has one that waits behind others of its user; one that keeps what it has pays
    no penalty. `tables` keeps goodput tables from one
    call to the next. Raises `InvalidProblemError` if the problem contradicts itself.
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
        found.append(Appraisal(fitness=fitness, speedups={job.job_id: 0.0 for job in jobs} | speedups))
    return tuple(found)
