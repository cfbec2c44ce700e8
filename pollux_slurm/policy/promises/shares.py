"""The GPUs that promises may take: those of the share of the job's user, within limits. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pollux_slurm.model import Problem, ProblemJob
from pollux_slurm.policy.participation.user_shares import group_of
from pollux_slurm.policy.promises.plans import Pool


def pools_of(problem: Problem, jobs: Sequence[ProblemJob]) -> dict[str, list[Pool]]:
    """Return the pools of GPUs that each of `jobs` may be promised, by job id; jobs share pools.

    A pool is the user's share of the nodes that a job may use; with several sets of nodes, each set is one,
    beside that of all nodes. A limit is a pool of the jobs that it counts.
    """
    parts = _parts(problem)
    shared: dict[tuple[str, frozenset[str] | None], Pool] = {}
    found: dict[str, list[Pool]] = {}
    for job in jobs:
        name = _group(problem, job)
        mine = found[job.job_id] = []
        for nodes in dict.fromkeys((None, job.partition_nodes)):
            if (name, nodes) not in shared:
                total = sum(node.num_gpus for node in problem.nodes if nodes is None or node.name in nodes)
                shared[name, nodes] = Pool(int(total * parts[name] + 1e-9))
            mine.append(shared[name, nodes])
    for limit in problem.limits:
        pool = Pool(limit.max_gpus)
        for job, counts in zip(jobs, limit.members(jobs), strict=True):
            if counts:
                found[job.job_id].append(pool)
    return found


def _group(problem: Problem, job: ProblemJob) -> str:
    """Return whose share a job's promise is within: its user's, or account's. Nameless jobs share one."""
    between = problem.objective.between
    return group_of(job, "users" if between == "jobs" else between) or ""


def _parts(problem: Problem) -> dict[str, float]:
    """Return each user's part of the cluster.

    Between users, it is in proportion to the mean weight of the user's jobs; between jobs, to the sum.
    """
    weights: defaultdict[str, list[float]] = defaultdict(list)
    for job in problem.jobs:
        if not job.rigid:
            weights[_group(problem, job)].append(job.weight)
    between_jobs = problem.objective.between == "jobs"
    of_group = {name: sum(values) / (1 if between_jobs else len(values)) for name, values in weights.items()}
    total = sum(of_group.values())
    return {name: weight / total for name, weight in of_group.items()}
