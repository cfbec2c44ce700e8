"""Which requests to be finished by a moment are accepted, and the GPUs that keep them in this round. Pure.

A request is accepted if the job can be finished in time within its user's share and its time limit, and all
promises that were accepted before are still kept. A refused one is asked again in each round: earlier jobs
may end early.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from pollux_slurm.goodput import TableCache
from pollux_slurm.model import Problem, ProblemJob, Promise, PromiseState
from pollux_slurm.policy.participation.problem_checks import find_exclusions
from pollux_slurm.policy.promises.needs import find_needs, why_not_kept
from pollux_slurm.policy.promises.plans import Need, Plan, earliest_plan, plan_all
from pollux_slurm.policy.promises.shares import pools_of

_KEEPS_NONE = "the objective osdi21 keeps no promises"
_IS_PAST = "its moment has passed"


def answer_promises(problem: Problem, cache: TableCache | None = None) -> dict[str, Promise]:
    """Return the answer to each job of the problem with a `finish_by_s`, by job id.

    Those that were accepted earlier stay accepted while length and model count, and the moment is ahead. One
    that is late keeps its GPUs, and takes no more from others. `cache` is one of goodput tables.
    """
    asking = [job for job in problem.jobs if job.finish_by_s is not None]
    if not asking:
        return {}
    found: dict[str, Promise] = {}
    excluded = find_exclusions(dataclasses.replace(problem, jobs=tuple(asking)))
    for job in asking:
        reason = excluded.get(job.job_id) or _why_not(problem, job)
        if job.promise is PromiseState.ENDED:
            found[job.job_id] = Promise(job_id=job.job_id, state=PromiseState.ENDED)
        elif reason is not None:
            found[job.job_id] = _without(job, reason)
    asking = [job for job in asking if job.job_id not in found]
    needs: dict[str, Need] = {}
    for job_id, need in find_needs(problem, asking, cache).items():
        if isinstance(need, Need):
            needs[job_id] = need
        else:
            found[job_id] = _without(next(job for job in asking if job.job_id == job_id), need)
    asking = [job for job in asking if job.job_id in needs]
    accepted = _accepted(problem, asking, needs)
    pools = pools_of(problem, asking)
    plans = plan_all(accepted, pools)
    for job in asking:
        need = needs[job.job_id]
        if job.job_id in plans:
            plan, state = plans[job.job_id], PromiseState.ACCEPTED
            least = plan.gpus_now if not _is_late(need, plans) else min(plan.gpus_now, need.num_gpus)
        else:
            plan, state, least = earliest_plan(need, pools[job.job_id]), PromiseState.REFUSED, 0
        finish_s = plan.finish_s + (job.finish_by_s or 0.0) - need.finish_by_s
        found[job.job_id] = Promise(
            job_id=job.job_id,
            state=state,
            least_gpus=least,
            finish_s=finish_s if math.isfinite(finish_s) else None,
            time_left_s=job.time_left_s
            if need.time_left_s < plan.runs_s and math.isfinite(finish_s)
            else None,
        )
    return found


def _why_not(problem: Problem, job: ProblemJob) -> str | None:
    if problem.objective.name == "osdi21":
        return _KEEPS_NONE
    if job.finish_by_s is not None and job.finish_by_s <= 0:
        return _IS_PAST
    return why_not_kept(job)


def _without(job: ProblemJob, reason: str) -> Promise:
    """Return the answer to a job whose request cannot be judged: an accepted one ends."""
    was_accepted = job.promise is PromiseState.ACCEPTED
    state = PromiseState.ENDED if was_accepted or reason == _IS_PAST else PromiseState.UNKNOWN
    return Promise(job_id=job.job_id, state=state, reason=reason)


def _accepted(problem: Problem, asking: Sequence[ProblemJob], needs: Mapping[str, Need]) -> list[Need]:
    """Return what accepted jobs need: those from before, and each new one that fits, the oldest first."""
    accepted = [needs[job.job_id] for job in asking if job.promise is PromiseState.ACCEPTED]
    plans = plan_all(accepted, pools_of(problem, asking))
    for job in sorted(asking, key=lambda job: -job.age_s):
        need = needs[job.job_id]
        if job.promise is PromiseState.ACCEPTED or not _is_possible_alone(need):
            continue
        tried = plan_all([*accepted, need], pools_of(problem, asking))
        broken = [one for one in accepted if _is_late(one, tried) and not _is_late(one, plans)]
        if not broken and not _is_late(need, tried):
            accepted, plans = [*accepted, need], tried
    return accepted


def _is_possible_alone(need: Need) -> bool:
    gpus, rate = need.rates[-1]
    takes_s = need.work / rate + (need.delay_s if gpus != need.num_gpus else 0.0)
    return takes_s <= min(need.finish_by_s, need.time_left_s)


def _is_late(need: Need, plans: Mapping[str, Plan]) -> bool:
    return not plans[need.job_id].is_in_time(need)


def with_promised_gpus(
    problem: Problem, promises: Mapping[str, Promise], submitted: Mapping[str, int | None] | None = None
) -> Problem:
    """Return the problem in which accepted jobs have their `promised_gpus`.

    While a rigid job waits, a promise keeps no more than the GPUs that the job was `submitted` with: all
    beyond that is lent.
    """
    kept = {name: one for name, one in promises.items() if one.least_gpus}
    if not kept:
        return problem
    rigid_waits = any(job.rigid and not job.current for job in problem.jobs)

    def gpus(job: ProblemJob) -> int:
        least = kept[job.job_id].least_gpus
        own = (submitted or {}).get(job.job_id) or 0
        return min(least, max(own, job.min_gpus)) if rigid_waits else least

    return dataclasses.replace(
        problem,
        jobs=tuple(
            dataclasses.replace(job, promised_gpus=gpus(job)) if job.job_id in kept else job
            for job in problem.jobs
        ),
    )
