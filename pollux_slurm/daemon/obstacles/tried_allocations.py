"""A decision in which no job gets an allocation that may not be tried now. Pure.

Whether one may be is known of nodes by name, and a decision is searched by configurations. So a decision is
checked, and made again without the configurations that it must not use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pollux_slurm.model import Allocation, Decision, JobDecision, Problem, ProblemJob, RefusedConfiguration

# After so many decisions, a job keeps what it has; after so many more, the moves that are left are not made.
_ATTEMPTS, _WITH_PINS = 6, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTried:
    """Why a job is not given an allocation. Without `leaves_out`, it keeps what it has in this round."""

    because: str
    leaves_out: tuple[RefusedConfiguration, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A decision and its problem, and why jobs did not get what they would have got, by job id."""

    problem: Problem
    decision: Decision
    not_tried: Mapping[str, str]


def decide_within(
    problem: Problem,
    decide: Callable[[Problem], Decision],
    not_tried: Callable[[str, Allocation], NotTried | None],
) -> Tried:
    """Decide so that `not_tried`, by job id and allocation, is None for all that changes.

    A rigid job that does not get all of its nodes takes no part: nobody moves for a half of it.
    """
    wanted: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for attempt in range(_ATTEMPTS + _WITH_PINS):
        decision = decide(problem)
        found = _faults(problem, decision, not_tried)
        for job_id, (gpus, fault) in found.items():
            wanted[job_id], reasons[job_id] = max(wanted.get(job_id, 0), gpus), fault.because
        split = _split_jobs(problem, decision)
        if not (found or split):
            break
        jobs = tuple(
            _without(job, found[job.job_id][1], pins=attempt >= _ATTEMPTS) if job.job_id in found else job
            for job in problem.jobs
            if job.job_id not in split
        )
        problem = dataclasses.replace(problem, jobs=jobs)
    excluded = {job_id: reasons[job_id] for job_id in found}
    decision = dataclasses.replace(
        decision,
        jobs=tuple(_explained(job, wanted.get(job.job_id, 0)) for job in decision.jobs),
        excluded=(*decision.excluded, *excluded.items()),
    )
    return Tried(problem=problem, decision=decision, not_tried=reasons)


def _faults(
    problem: Problem, decision: Decision, not_tried: Callable[[str, Allocation], NotTried | None]
) -> dict[str, tuple[int, NotTried]]:
    """Return the GPUs of each allocation that is not to be tried, and why not, by job id."""
    jobs = {job.job_id: job for job in problem.jobs}
    left_out = {job_id for job_id, _ in decision.excluded}
    found = {}
    for decided in decision.jobs:
        job = jobs[decided.job_id]
        stays = not decided.allocation or decided.allocation == job.current
        if stays or job.rigid or job.pinned or job.job_id in left_out:
            continue
        if (fault := not_tried(job.job_id, decided.allocation)) is not None:
            found[job.job_id] = (decided.allocation.num_gpus, fault)
    return found


def _split_jobs(problem: Problem, decision: Decision) -> frozenset[str]:
    """Return the parts of rigid jobs of several nodes that would get some of these, and not all."""
    whole = {
        job.job_id: job.job_id.partition("/")[0] for job in problem.jobs if job.rigid and not job.current
    }
    gets: dict[str, set[bool]] = {}
    for decided in decision.jobs:
        if decided.job_id in whole:
            gets.setdefault(whole[decided.job_id], set()).add(bool(decided.allocation))
    return frozenset(part for part, job_id in whole.items() if len(gets.get(job_id, ())) > 1)


def _without(job: ProblemJob, fault: NotTried, *, pins: bool) -> ProblemJob:
    if pins or not fault.leaves_out:
        return dataclasses.replace(job, pinned=True, pinned_because=fault.because)
    return dataclasses.replace(job, refused=(*job.refused, *fault.leaves_out))


def _explained(decided: JobDecision, wanted: int) -> JobDecision:
    if wanted <= decided.allocation.num_gpus or decided.pinned_because is not None:
        return decided
    return dataclasses.replace(decided, bound_by="not_tried")
