"""What adaptive jobs have beyond the shapes that their owners submitted is lent. Pure.

Rigid jobs that wait may have what is lent, and no more: for their sake no running job goes below the shape
that was submitted. Adaptive jobs may take from each other down to their users' shares. So a round with rigid
jobs first decides without them: what a running job gets there bounds what is its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from pollux_slurm.model import Decision, Problem, ProblemJob


def keep_submitted_shapes(
    problem: Problem, decide: Callable[[Problem], Decision], submitted: Mapping[str, int | None]
) -> Problem:
    """Return the problem in which rigid jobs take no more than what is lent.

    `submitted` are the GPUs of each adaptive job as its owner submitted it, None where not known.
    """
    if not any(job.rigid and not job.current for job in problem.jobs):
        return problem
    adaptive = tuple(job for job in problem.jobs if not job.rigid)
    alone = decide(dataclasses.replace(problem, jobs=adaptive))
    gets = {job.job_id: job.allocation.num_gpus for job in alone.jobs}

    def own(job: ProblemJob) -> int:
        most = job.current.num_gpus if job.max_gpus is None else min(job.current.num_gpus, job.max_gpus)
        return min(submitted.get(job.job_id) or 0, most, gets.get(job.job_id, 0))

    return dataclasses.replace(
        problem,
        jobs=tuple(
            job if job.rigid or job.pinned else dataclasses.replace(job, min_gpus=max(job.min_gpus, own(job)))
            for job in problem.jobs
        ),
    )
