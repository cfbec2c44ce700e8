"""The policy's rules once more, as plainly as possible: what is allowed, what it is worth, the best of all.

A slow twin of `pollux_slurm.policy`, which shares no code with it but the goodput of one configuration.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection

from pollux_slurm.goodput import best_batch
from pollux_slurm.model import Allocation, Configuration, Problem, ProblemJob

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
    """Nodes that take nothing new: drained, or more held on them than they have."""
    held = usage(problem, {job.job_id: job.current for job in problem.jobs})
    return {
        node.name
        for node in problem.nodes
        if not node.accepts_new
        or any(have > size for have, size in zip(held[node.name], sizes(node), strict=True))
    }


def sizes(node) -> tuple[int, int, int]:
    return (node.num_gpus, node.num_cpus, node.memory_mb)


def violations(problem: Problem, answer: Answer) -> list[str]:
    """Say every rule that an answer breaks."""
    found = []
    closed = closed_nodes(problem)
    held = usage(problem, {job.job_id: job.current for job in problem.jobs})
    used = usage(problem, answer)
    for node in problem.nodes:
        room = [max(pair) for pair in zip(sizes(node), held[node.name], strict=True)]
        if any(have > most for have, most in zip(used[node.name], room, strict=True)):
            found.append(f"node {node.name} holds {used[node.name]} of {room}")
    for job in problem.jobs:
        given = answer[job.job_id]
        if given == job.current:
            continue
        if job.pinned:
            found.append(f"pinned job {job.job_id} moved")
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
    for one, two in itertools.combinations(problem.jobs, 2):
        first, second = answer[one.job_id], answer[two.job_id]
        unchanged = first == one.current and second == two.current
        shared = set(first.nodes) & set(second.nodes)
        if shared and first.num_nodes > 1 and second.num_nodes > 1 and not unchanged:
            found.append(f"jobs {one.job_id} and {two.job_id} both span {sorted(shared)[0]}")
    return found


def cap(job: ProblemJob) -> int:
    measured = job.model is not None and job.model.throughput is not None
    return max(2 * job.model.max_gpus_seen if measured else 0, job.min_gpus, job.current.num_gpus, 1)


@functools.cache
def goodput(job: ProblemJob, num_nodes: int, num_gpus: int) -> float:
    found = best_batch(job.model, Configuration(num_nodes=num_nodes, num_gpus=num_gpus))
    return 0.0 if found is None else found.goodput


def speedup(problem: Problem, job: ProblemJob, allocation: Allocation) -> float:
    """SPEEDUP of an allocation, its limits aside."""
    widest = max((node.num_gpus for node in problem.nodes), default=0)
    share = max(math.ceil(sum(node.num_gpus for node in problem.nodes) / len(problem.jobs)), 1)
    share = share if job.max_gpus is None else min(share, job.max_gpus)
    if job.model is None or job.model.throughput is None:
        return allocation.num_gpus / share
    base = max(
        (
            goodput(job, math.ceil(k / max(widest, 1)), k)
            for k in range(1, share + 1)
            if k == share or _is_whole(k, widest)
        ),
        default=0.0,
    )
    if base == 0:
        for k in range(share + 1, 200):
            splits = [n for n in range(1, len(problem.nodes) + 1) if k % n == 0 and k // n <= widest]
            base = next((found for n in splits if (found := goodput(job, n, k))), 0.0) * share / k
            if base:
                break
    return goodput(job, allocation.num_nodes, allocation.num_gpus) / base if base else 0.0


def _is_whole(num_gpus: int, widest: int) -> bool:
    return num_gpus <= widest or num_gpus % max(widest, 1) == 0


def penalty(job: ProblemJob, allocation: Allocation) -> float:
    if allocation == job.current or not job.current or job.restart_delay_s == 0:
        return 1.0
    delay = job.restart_delay_s
    return max(job.age_s - job.num_restarts * delay, 0) / (job.age_s + delay)


def worth(problem: Problem, job: ProblemJob, allocation: Allocation) -> float:
    """f·SPEEDUP, and nothing for what is held outside the job's own limits though it could be changed."""
    if not allocation:
        return 0.0
    outside = not job.min_gpus <= allocation.num_gpus <= (job.max_gpus or allocation.num_gpus)
    if outside and not job.pinned:
        return 0.0
    return penalty(job, allocation) * speedup(problem, job, allocation)


def mean(problem: Problem, worths: list[float]) -> float:
    p, x = problem.objective.exponent, [value + problem.objective.floor for value in worths]
    if p == 0:
        return math.exp(sum(map(math.log, x)) / len(x))
    return (sum(value**p for value in x) / len(x)) ** (1 / p)


def choices(problem: Problem, job: ProblemJob) -> list[Allocation]:
    """Everything a job could be given, other jobs aside."""
    found = [job.current]
    if job.pinned:
        return found
    closed = closed_nodes(problem)
    usable = [
        node
        for node in problem.nodes
        if node.name not in closed and (job.partition_nodes is None or node.name in job.partition_nodes)
    ]
    most = min(cap(job), job.max_gpus if job.max_gpus is not None else cap(job))
    for count in range(1, len(usable) + 1):
        for nodes in itertools.combinations(usable, count):
            for share in range(1, min(node.num_gpus for node in nodes) + 1):
                allocation = Allocation.of({node.name: share for node in nodes})
                if job.min_gpus <= share * count <= most and worth_anything(problem, job, allocation):
                    found.append(allocation)
    return found


def worth_anything(problem: Problem, job: ProblemJob, allocation: Allocation) -> bool:
    return speedup(problem, job, allocation) > 0


def best(problem: Problem, left_out: Collection[str] = ()) -> tuple[int, float]:
    """Try every answer; return how many waiting jobs get nothing at the best one, and its fitness.

    The fitness is over the jobs that are not `left_out`.
    """
    jobs = problem.jobs
    options = [
        [(allocation, worth(problem, job, allocation)) for allocation in dict.fromkeys(choices(problem, job))]
        for job in jobs
    ]
    best_waiting, best_fitness = len(jobs) + 1, 0.0
    for picks in itertools.product(*options):
        answer = {job.job_id: pick[0] for job, pick in zip(jobs, picks, strict=True)}
        waiting = sum(not allocation for allocation in answer.values())
        worths = [pick[1] for job, pick in zip(jobs, picks, strict=True) if job.job_id not in left_out]
        fitness = mean(problem, worths) if worths else 0.0
        if (-waiting, fitness) > (-best_waiting, best_fitness) and not violations(problem, answer):
            best_waiting, best_fitness = waiting, fitness
    return best_waiting, best_fitness
