"""The policy's rules again, as simply as possible: allowed allocations, their values, exhaustive search.

A slow reference for `pollux_slurm.policy`, which shares no code with it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection

from pollux_slurm.model import Allocation, Configuration, GoodputModel, Problem, ProblemJob
from tests.goodput.plain_batches import best_batch

Answer = dict[str, Allocation]


def need(job: ProblemJob) -> tuple[int, int, int]:
    return (1, job.cpus_per_gpu, job.memory_per_gpu_mb)


def usage(problem: Problem, answer: Answer) -> dict[str, list[int]]:
    used = {node.name: [0, 0, 0] for node in problem.nodes}
    for job in problem.jobs:
        for name, gpus in answer[job.job_id].gpus_by_node:
            used[name] = [have + gpus * part for have, part in zip(used[name], need(job), strict=True)]
    return used


def closed_nodes(problem: Problem) -> set[str]:
    """Return the nodes that take no new jobs: drained or overcommitted ones."""
    current = usage(problem, {job.job_id: job.current for job in problem.jobs})
    return {
        node.name
        for node in problem.nodes
        if not node.accepts_new
        or any(have > size for have, size in zip(current[node.name], sizes(node), strict=True))
    }


def sizes(node) -> tuple[int, int, int]:
    return (node.num_gpus, node.num_cpus, node.memory_mb)


def violations(problem: Problem, answer: Answer) -> list[str]:
    """Return a sentence for every rule that an answer breaks."""
    found = []
    closed = closed_nodes(problem)
    current = usage(problem, {job.job_id: job.current for job in problem.jobs})
    used = usage(problem, answer)
    for node in problem.nodes:
        room = [max(pair) for pair in zip(sizes(node), current[node.name], strict=True)]
        if any(have > most for have, most in zip(used[node.name], room, strict=True)):
            found.append(f"node {node.name} holds {used[node.name]} of {room}")
    for job in problem.jobs:
        given = answer[job.job_id]
        if given == job.current:
            continue
        if job.pinned:
            found.append(f"pinned job {job.job_id} moved")
        if job.current and job.age_s < problem.moving.min_age_s:
            found.append(f"job {job.job_id} is too young to be moved")
        if job.rigid and given.num_gpus != job.min_gpus and (given or not problem.moving.pauses):
            found.append(f"rigid job {job.job_id} got {given.num_gpus} GPUs")
        if len({kind_of(problem, name) for name in given.nodes}) > 1:
            found.append(f"job {job.job_id} got GPUs of several types")
        if not given and problem.moving.pauses:
            continue
        if not given:
            found.append(f"running job {job.job_id} lost everything")
        if given.num_gpus < job.min_gpus:
            found.append(f"job {job.job_id} is below its minimum")
        if given.num_gpus > cap(job) or (job.max_gpus is not None and given.num_gpus > job.max_gpus):
            found.append(f"job {job.job_id} is above its maximum")
        if len({gpus for _, gpus in given.gpus_by_node}) > 1:
            found.append(f"job {job.job_id} got {given}, which Slurm cannot express")
        for name in given.nodes:
            if name in closed:
                found.append(f"job {job.job_id} is new on closed node {name}")
            if job.partition_nodes is not None and name not in job.partition_nodes:
                found.append(f"job {job.job_id} is outside its partition on {name}")
    for limit in problem.limits:
        inside = [
            job
            for job in problem.jobs
            if (
                job.job_id in limit.job_ids
                if limit.job_ids is not None
                else getattr(job, limit.kind) == limit.name
            )
        ]
        most = max(limit.max_gpus, sum(job.current.num_gpus for job in inside))
        if sum(answer[job.job_id].num_gpus for job in inside) > most:
            found.append(f"{limit.kind} {limit.name} has more than {most} GPUs")
    moved = sum(bool(job.current) and answer[job.job_id] != job.current for job in problem.jobs)
    if problem.moving.max_reallocations is not None and moved > problem.moving.max_reallocations:
        found.append(f"{moved} running jobs are moved")
    for one, two in itertools.combinations(problem.jobs, 2):
        first, second = answer[one.job_id], answer[two.job_id]
        unchanged = first == one.current and second == two.current
        shared = set(first.nodes) & set(second.nodes)
        if shared and first.num_nodes > 1 and second.num_nodes > 1 and not unchanged:
            found.append(f"jobs {one.job_id} and {two.job_id} both span {sorted(shared)[0]}")
    return found


def cap(job: ProblemJob) -> int:
    seen = [model.max_gpus_seen for model in (job.model, *dict(job.models).values()) if is_measured(model)]
    return max(4 * max(seen, default=0), job.min_gpus, job.current.num_gpus, 1)


def is_measured(model: GoodputModel | None) -> bool:
    return model is not None and model.throughput is not None


def kind_of(problem: Problem, name: str) -> str:
    return next(node.gpu_type or "" for node in problem.nodes if node.name == name)


def model_on(problem: Problem, job: ProblemJob, kind: str) -> tuple[GoodputModel | None, float]:
    """Return the model that counts on a GPU type, and the speed of the type relative to it."""
    own = [(one, model) for one, model in job.models if is_measured(model)]
    if kind in dict(own):
        return dict(own)[kind], 1.0
    if is_measured(job.model):
        return job.model, 1.0
    if own:
        speeds = dict(problem.gpu_speeds)
        return own[0][1], speeds[kind] / speeds[own[0][0]]
    return None, 1.0


@functools.cache
def of_model(model: GoodputModel, num_nodes: int, num_gpus: int) -> float:
    found = best_batch(model, Configuration(num_nodes=num_nodes, num_gpus=num_gpus))
    return 0.0 if found is None else found.goodput


def goodput(problem: Problem, job: ProblemJob, kind: str, num_nodes: int, num_gpus: int) -> float:
    model, faster = model_on(problem, job, kind)
    return 0.0 if model is None else of_model(model, num_nodes, num_gpus) * faster


def speedup(problem: Problem, job: ProblemJob, allocation: Allocation) -> float:
    """Return SPEEDUP of an allocation, whatever the job's bounds."""
    total = sum(node.num_gpus for node in problem.nodes)
    share = max(math.ceil(total / len(problem.jobs)), 1)
    share = share if job.max_gpus is None else min(share, job.max_gpus)
    if not any(is_measured(model) for model in (job.model, *dict(job.models).values())):
        return allocation.num_gpus / share
    kinds = sorted({node.gpu_type or "" for node in problem.nodes if node.num_gpus > 0})
    sizes = {kind: [n.num_gpus for n in problem.nodes if (n.gpu_type or "") == kind] for kind in kinds}
    base = sum(sum(sizes[kind]) / total * at_share(problem, job, kind, share) for kind in kinds)
    if base == 0:
        for k in range(1, 200):
            splits = [
                (kind, n)
                for kind in kinds
                for n in range(1, len(sizes[kind]) + 1)
                if k % n == 0 and k // n <= max(sizes[kind])
            ]
            base = next((f for kind, n in splits if (f := goodput(problem, job, kind, n, k))), 0.0)
            base *= share / k
            if base:
                break
    if not base or not allocation:
        return 0.0
    current = {kind_of(problem, name) for name in allocation.nodes}
    return min(goodput(problem, job, k, allocation.num_nodes, allocation.num_gpus) for k in current) / base


def at_share(problem: Problem, job: ProblemJob, kind: str, share: int) -> float:
    widest = max(node.num_gpus for node in problem.nodes if (node.gpu_type or "") == kind)
    return max(
        goodput(problem, job, kind, math.ceil(k / widest), k)
        for k in range(1, share + 1)
        if k == share or _is_whole(k, widest)
    )


def _is_whole(num_gpus: int, widest: int) -> bool:
    return num_gpus <= widest or num_gpus % max(widest, 1) == 0


def penalty(problem: Problem, job: ProblemJob, allocation: Allocation) -> float:
    if allocation == job.current or not job.current:
        return 1.0
    keep = 1 - problem.moving.hysteresis
    spent = job.num_restarts * job.restart_delay_s
    if job.in_place_delay_s is not None and is_in_place(problem, job, allocation):
        # It trains on as before while its new processes start.
        now, there = speedup(problem, job, job.current), speedup(problem, job, allocation)
        keep = 1.0 if allocation.num_gpus > job.current.num_gpus else keep
        cost = job.in_place_delay_s * (max(1 - now / there, 0.0) if there else 0.0)
    else:
        cost = job.restart_delay_s
        keep = keep if job.num_restarts else 1.0
    life, left = job.age_s + cost, seconds_left(problem, job, allocation)
    kept = max(max(job.age_s - spent, 0.0) / life if life else 1.0, 300.0 / (300.0 + cost))
    return keep * min(kept, 1.0 if left is None else left / (left + cost))


def seconds_left(problem: Problem, job: ProblemJob, allocation: Allocation) -> float | None:
    """Return how long a job still trains in an allocation, None where that is not known."""
    progress = job.progress or 0.0
    if job.epochs_declared and job.epochs_done and progress and job.epochs_done < job.epochs_declared:
        missing = progress * (job.epochs_declared - job.epochs_done) / job.epochs_done
    elif job.expected_progress is not None and job.expected_progress > progress:
        missing = job.expected_progress - progress
    else:
        return None
    kinds = {kind_of(problem, name) for name in allocation.nodes}
    rate = min(goodput(problem, job, k, allocation.num_nodes, allocation.num_gpus) for k in kinds)
    return missing / rate if rate > 0 else None


def is_in_place(problem: Problem, job: ProblemJob, allocation: Allocation) -> bool:
    """Return whether a job goes to another allocation in place: keeps a wing, and has room for new ones."""
    if job.in_place_delay_s is None or not job.wings:
        return False
    several = {node.name for node in problem.nodes if node.several_wings}
    free = {node.name: node.num_gpus for node in problem.nodes}
    for other in problem.jobs:
        for name, gpus in other.current.gpus_by_node:
            free[name] -= gpus
    missing, leaving, kept = allocation.as_dict(), set(), 0
    for wing in sorted(job.wings, key=lambda wing: -wing.num_gpus):
        if all(
            gpus <= missing.get(name, 0) and (name in several or gpus == allocation.as_dict()[name])
            for name, gpus in wing.gpus_by_node
        ):
            kept += 1
            for name, gpus in wing.gpus_by_node:
                missing[name] -= gpus
        else:
            leaving.update(wing.nodes)
    return kept > 0 and all(free[name] >= missing[name] for name in missing if name in leaving)


def worth(problem: Problem, job: ProblemJob, allocation: Allocation) -> float:
    """Return f·SPEEDUP; 0 for a current allocation outside the job's own bounds."""
    if not allocation:
        return 0.0
    outside = not job.min_gpus <= allocation.num_gpus <= (job.max_gpus or allocation.num_gpus)
    if outside and not job.pinned:
        return 0.0
    return penalty(problem, job, allocation) * speedup(problem, job, allocation)


def mean(problem: Problem, worths: list[float], weights: list[float] | None = None) -> float:
    if not worths:
        return 0.0
    p, x = problem.objective.exponent, [value + problem.objective.floor for value in worths]
    w = weights or [1.0] * len(x)
    if p == 0:
        return math.exp(sum(a * math.log(b) for a, b in zip(w, x, strict=True)) / sum(w))
    return (sum(a * b**p for a, b in zip(w, x, strict=True)) / sum(w)) ** (1 / p)


def choices(problem: Problem, job: ProblemJob) -> list[Allocation]:
    """Return all allocations that a job could get if there were no other jobs."""
    found = [job.current]
    if job.pinned or (job.current and job.age_s < problem.moving.min_age_s):
        return found
    if problem.moving.pauses:
        found.append(Allocation())
    closed = closed_nodes(problem)
    usable = [
        node
        for node in problem.nodes
        if node.name not in closed and (job.partition_nodes is None or node.name in job.partition_nodes)
    ]
    most = min(cap(job), job.max_gpus if job.max_gpus is not None else cap(job))
    most = min(most, job.min_gpus) if job.rigid else most
    for count in range(1, len(usable) + 1):
        for nodes in itertools.combinations(usable, count):
            if len({node.gpu_type for node in nodes}) > 1:
                continue
            for share in range(1, min(node.num_gpus for node in nodes) + 1):
                allocation = Allocation.of({node.name: share for node in nodes})
                if job.min_gpus <= share * count <= most and worth_anything(problem, job, allocation):
                    found.append(allocation)
    return found


def num_waiting(problem: Problem, answer: Answer) -> int:
    """Return how many of the jobs wait that come before all else: with pauses, only unmeasured ones do."""
    return sum(
        not answer[job.job_id]
        and not (
            problem.moving.pauses
            and any(is_measured(model) for model in (job.model, *dict(job.models).values()))
        )
        for job in problem.jobs
    )


def worth_anything(problem: Problem, job: ProblemJob, allocation: Allocation) -> bool:
    return speedup(problem, job, allocation) > 0


def best(problem: Problem, left_out: Collection[str] = ()) -> tuple[int, float]:
    """Try every answer; return how many jobs wait (`num_waiting`) at the best one, and its fitness.

    The fitness is over the jobs that are not `left_out`.
    """
    jobs = problem.jobs
    candidates = [
        [(allocation, worth(problem, job, allocation)) for allocation in dict.fromkeys(choices(problem, job))]
        for job in jobs
    ]
    best_waiting, best_fitness = len(jobs) + 1, 0.0
    for picks in itertools.product(*candidates):
        answer = {job.job_id: pick[0] for job, pick in zip(jobs, picks, strict=True)}
        waiting = num_waiting(problem, answer)
        worths = [pick[1] for job, pick in zip(jobs, picks, strict=True) if job.job_id not in left_out]
        weights = [job.weight for job in jobs if job.job_id not in left_out]
        fitness = mean(problem, worths, weights) if worths else 0.0
        if (-waiting, fitness) > (-best_waiting, best_fitness) and not violations(problem, answer):
            best_waiting, best_fitness = waiting, fitness
    return best_waiting, best_fitness
