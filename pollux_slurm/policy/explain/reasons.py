"""What bound each job's decision, and its next best size: from the final state, whatever the search did."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from pollux_slurm.model import Configuration, JobDecision, Problem, ProblemJob, ReallocationWay
from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.explain.facts import FASTER, SolutionFacts
from pollux_slurm.policy.objectives.restart_penalty import move_delay_s
from pollux_slurm.policy.participation.user_shares import group_of
from pollux_slurm.policy.problem.node_sets import members_of
from pollux_slurm.policy.search.search import Solution


def explain_all(solution: Solution, candidates: Candidates) -> list[JobDecision]:
    """Return the decision about each job of `candidates`, in their order."""
    facts = SolutionFacts(solution, candidates)
    return [_explain(solution, candidates, facts, index) for index in range(candidates.num_jobs)]


def _explain(solution: Solution, candidates: Candidates, facts: SolutionFacts, index: int) -> JobDecision:
    """Return the decision about job `index` of a solved state."""
    tables, job = candidates.tables, candidates.jobs[index]
    placed = facts.placed[index]
    chosen = placed.candidate
    allocation = job.current if chosen.stays else solution.state.cluster.allocation_of(placed.gpus)
    estimate = tables.estimate(index, allocation) if allocation else None
    base = tables.reference_goodput.item(index)
    if estimate is not None and base > 0:
        speedup = estimate.goodput / base
    else:
        speedup = tables.speedup_of(index, allocation)
    column = facts.runner_up[index]
    cost = facts.price_of(allocation)
    configuration = faster = other_cost = other_type = None
    if column >= 0:
        num_nodes, _, num_gpus, kind = tables.columns.shapes[column]
        configuration = Configuration(num_nodes=num_nodes, num_gpus=num_gpus)
        other_type = tables.kinds[kind] or None
        other_cost = facts.prices[index][kind] * num_gpus - cost
    elif column == -1:
        configuration, other_type = job.current.configuration, facts.type_of(job.current)
        other_cost = facts.price_of(job.current) - cost
    if configuration is not None:
        faster = facts.runner_up_speedup[index]
    way = None
    if job.current and allocation and allocation != job.current:
        way = ReallocationWay.IN_PLACE if chosen.in_place else ReallocationWay.REQUEUE
    return JobDecision(
        job_id=job.job_id,
        allocation=allocation,
        speedup=speedup,
        goodput=None if estimate is None else estimate.goodput,
        penalty=chosen.penalty,
        batch=None if estimate is None else estimate.batch,
        bound_by=_bound_by(solution, candidates, facts, index),
        runner_up=configuration,
        runner_up_speedup=faster,
        runner_up_cost=other_cost,
        cost=cost,
        gpu_type=facts.type_of(allocation),
        runner_up_gpu_type=other_type,
        declared_gain=facts.declared_gain(index),
        declaration_doubt=job.declaration_doubt,
        pinned_because=job.pinned_because if job.pinned else None,
        way=way,
        move_delay_s=None if way is None else move_delay_s(job, in_place=chosen.in_place),
    )


def _bound_by(solution: Solution, candidates: Candidates, facts: SolutionFacts, index: int) -> str:
    """Return what keeps the job from more speedup; see `JobDecision.bound_by`."""
    state, placed = solution.state, facts.placed[index]
    job, chosen = candidates.jobs[index], placed.candidate
    if job.pinned:
        return "pinned"
    if candidates.settled[index] or (job.held_off and job.current):
        return "young"
    if job.rigid and placed.gpus:
        return "rigid"
    if not facts.faster[index]:
        if _could_explore(candidates, facts, index, solution):
            return "exploration"
        if facts.has_larger[index]:
            return "nothing"
        # No configuration is larger: they end with the largest maximum of any job.
        if job.max_gpus is not None and chosen.num_gpus >= job.max_gpus:
            most = min(2 * job.max_gpus, int(state.cluster.capacity[:, 0].sum()))
            if most <= chosen.num_gpus or _is_faster_on(most, candidates, facts, index, solution):
                return "max_gpus"
            return "nothing"
        usable = state.cluster.capacity[list(members_of(state.eligible[index])), 0]
        return "partition" if chosen.num_gpus >= usable.sum() else "nothing"
    # A maximum binds only a job that has reached it. Below it, larger sizes are allowed and not faster.
    if not facts.within_max[index]:
        return "max_gpus" if chosen.num_gpus >= (job.max_gpus or 0) else "nothing"
    if not facts.within_cap[index]:
        return "exploration" if chosen.num_gpus >= candidates.tables.caps[index] else "nothing"
    if not facts.is_in_reach[index]:
        return "nothing" if facts.can_be_larger[index] else "partition"
    short = facts.shortage.in_general(index, facts.columns_in_reach[index])
    if short is not None:
        return short
    if not facts.is_wanted[index]:
        return "penalty"
    if chosen.stays and job.current and candidates.max_moves is not None and state.moves_left <= 0:
        return "moves"
    limit = state.limit_left(index)
    if limit is not None:
        fewest = min(least[index] for least in facts.least_wanted if least[index])
        if fewest - chosen.num_gpus > limit:
            return "limit"
    eligible, of_kind = state.eligible[index], facts.kind_of_node
    for kind, least in enumerate(facts.least_wanted):
        room = facts.room(index, kind)
        if not least[index] or (not room and not placed.gpus):
            continue
        for node, gpus in placed.gpus:
            if eligible >> node & 1 and of_kind[node] == kind:
                room += gpus
        if least[index] <= room:
            return facts.shortage.now(index, facts.wanted[index]) or "placement"
    return "capacity"


def _could_explore(candidates: Candidates, facts: SolutionFacts, index: int, solution: Solution) -> bool:
    """Return whether twice the cap, within the job's maximum and the cluster, is predicted to be faster."""
    cap, job = int(candidates.tables.caps[index]), candidates.jobs[index]
    capacity = solution.state.cluster.capacity[:, 0]
    most = min(2 * cap, int(capacity.sum()), 10**9 if job.max_gpus is None else job.max_gpus)
    if facts.placed[index].candidate.num_gpus < cap or most <= cap:
        return False
    return _is_faster_on(most, candidates, facts, index, solution)


def _is_faster_on(
    num_gpus: int, candidates: Candidates, facts: SolutionFacts, index: int, solution: Solution
) -> bool:
    """Return whether so many GPUs of the first type are predicted to be faster; True without a model."""
    tables, cluster = candidates.tables, solution.state.cluster
    row = int(tables.rows[index, 0])
    if row < 0:
        return True
    ratio, spread = float(tables.ratio[index, 0]), num_gpus > int(cluster.capacity[:, 0].max())
    found = tables.cache.estimate(row, (spread, num_gpus), ratio, geometric=tables.geometric)
    now = tables.estimate(index, cluster.allocation_of(facts.placed[index].gpus))
    return found is not None and (now is None or found.goodput > now.goodput * FASTER)


def waiting_for_starving(decision: JobDecision) -> JobDecision:
    """Return the decision, bound by "waiting" if the job got nothing: GPUs are kept for a starving job."""
    return decision if decision.allocation else dataclasses.replace(decision, bound_by="waiting")


def with_share_bounds(
    decisions: Sequence[JobDecision], jobs: Sequence[ProblemJob], problem: Problem
) -> list[JobDecision]:
    """Return the decisions, with "share" for "capacity" where a user's own other jobs take their share.

    That holds where the user's jobs, several of them, have at least the user's part of all GPUs.
    """
    names = [group_of(job, problem.objective.between) for job in jobs]
    users = {name or row for row, (name, job) in enumerate(zip(names, jobs, strict=True)) if not job.rigid}
    part = sum(node.num_gpus for node in problem.nodes) / max(len(users), 1)
    gpus: Counter[str] = Counter()
    for name, one in zip(names, decisions, strict=True):
        if name is not None:
            gpus[name] += one.allocation.num_gpus
    return [
        dataclasses.replace(one, bound_by="share")
        if one.bound_by == "capacity"
        and name is not None
        and len(users) > 1
        and one.allocation.num_gpus < gpus[name]
        and gpus[name] >= part * job.share
        else one
        for name, one, job in zip(names, decisions, jobs, strict=True)
    ]


def waiting_for_own_user(job: ProblemJob) -> JobDecision:
    """Return the decision about a waiting job that is beyond the share of its user."""
    return dataclasses.replace(excluded_decision(job), bound_by="share")


def excluded_decision(job: ProblemJob) -> JobDecision:
    """Return the decision about an excluded job: it keeps its allocation."""
    return JobDecision(
        job_id=job.job_id,
        allocation=job.current,
        speedup=0.0,
        goodput=None,
        penalty=1.0,
        batch=None,
        bound_by="pinned",
        runner_up=None,
        runner_up_speedup=None,
        declaration_doubt=job.declaration_doubt,
    )
