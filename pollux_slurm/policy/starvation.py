"""A bound on waiting: who has waited for too long is not overtaken any more. Pure.

Whatever the objective, most waiting jobs that can be served are served at once. But a job that needs many
GPUs may wait without end while smaller ones, that came later, take every GPU that becomes free, one by one.
After `Problem.max_wait_s`, nodes for its minimum are kept free of newcomers: what becomes free there adds up.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from pollux_slurm.model import NodeCapacity, Problem, ProblemJob

# However many jobs starve: nodes are kept for so many of them, and this part of all nodes at most, but always
# enough for one job.
MOST_JOBS = 16
MOST_KEPT = 0.5


def held_back(problem: Problem, jobs: Sequence[ProblemJob]) -> list[ProblemJob]:
    """Return `jobs` with nodes taken away from those that must not overtake.

    A job that holds GPUs on a node that is kept may stay, shrink and grow there: a running job gives way in
    the very round in which that lets a waiting one start, so that it is not in the way. All others lose the
    nodes. Where a limit of the starving job's account or user is what it waits for, no other job of theirs
    starts.
    """
    if problem.max_wait_s is None:
        return list(jobs)
    waiting = [job for job in jobs if not job.current and not job.pinned]
    starving = [job for job in waiting if job.waiting_s >= problem.max_wait_s]
    if not starving:
        return list(jobs)
    starving.sort(key=lambda job: (-job.waiting_s, job.job_id))
    room = _Room(problem, jobs)
    most = int(MOST_KEPT * len(problem.nodes))
    kept: set[str] = set()
    full: set[tuple[str, str]] = set()
    first: set[str] = set()
    held = _held_by_group(jobs)
    for job in starving[:MOST_JOBS]:
        blocked = _full_limits(problem, held, job)
        if blocked:
            full |= blocked
            first.add(job.job_id)
            continue
        chosen = room.choose(job, prefer=kept)
        if chosen and (not kept or len(kept | set(chosen)) <= most):
            room.take(job, chosen)
            kept |= set(chosen)
            first.add(job.job_id)
    left: dict[frozenset[str] | None, frozenset[str]] = {
        None: frozenset(node.name for node in problem.nodes) - kept
    }
    result = []
    for job in jobs:
        if job.job_id in first:
            result.append(job)
        elif not job.current and (("account", job.account) in full or ("user", job.user) in full):
            result.append(dataclasses.replace(job, partition_nodes=frozenset()))
        elif not kept or kept.intersection(job.current.nodes):
            result.append(job)
        else:
            own = job.partition_nodes
            if own not in left:
                left[own] = (own or frozenset()) - kept
            result.append(dataclasses.replace(job, partition_nodes=left[own]))
    return result


def _held_by_group(jobs: Sequence[ProblemJob]) -> Counter[tuple[str, str]]:
    """Return the GPUs that the jobs of each account, user and QOS hold."""
    held: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        held["account", job.account] += job.current.num_gpus
        held["user", job.user] += job.current.num_gpus
        held["qos", job.qos] += job.current.num_gpus
    return held


def _full_limits(problem: Problem, held: Counter[tuple[str, str]], job: ProblemJob) -> set[tuple[str, str]]:
    """Return the limits under which running jobs hold too much for `job` to have its minimum."""
    return {
        (limit.kind, limit.name)
        for limit in problem.limits
        if (limit.kind, limit.name) in (("account", job.account), ("user", job.user), ("qos", job.qos))
        and held[limit.kind, limit.name] + job.min_gpus > limit.max_gpus >= job.min_gpus
    }


class _Room:
    """What nodes could give to jobs that starve if everyone else left who can, and what is free already."""

    def __init__(self, problem: Problem, jobs: Sequence[ProblemJob]) -> None:
        self._nodes = {node.name: node for node in problem.nodes if node.accepts_new}
        self._left = {node.name: [node.num_gpus, node.num_cpus, node.memory_mb] for node in problem.nodes}
        self._free = {node.name: node.num_gpus for node in problem.nodes}
        # A node has one job over several nodes at most: who needs several may not count on these.
        self._spanned: set[str] = set()
        for job in jobs:
            for name, gpus in job.current.gpus_by_node:
                self._free[name] -= gpus
                if job.pinned:
                    self._subtract(job, name, gpus)
            if job.pinned and job.current.num_nodes > 1:
                self._spanned.update(job.current.nodes)

    def choose(self, job: ProblemJob, *, prefer: set[str]) -> tuple[str, ...]:
        """Return as few nodes as can be for a job's minimum, those that have most free; none: nowhere."""
        usable = [
            node
            for name, node in self._nodes.items()
            if job.partition_nodes is None or name in job.partition_nodes
        ]
        for count in range(1, min(len(usable), job.min_gpus) + 1):
            if job.min_gpus % count:
                continue
            share = job.min_gpus // count
            by_type: dict[str | None, list[NodeCapacity]] = {}
            for node in usable:
                if (count == 1 or node.name not in self._spanned) and all(
                    need <= left for need, left in zip(_need(job, share), self._left[node.name], strict=True)
                ):
                    by_type.setdefault(node.gpu_type, []).append(node)
            choices = [
                sorted(nodes, key=lambda node: (node.name not in prefer, -self._free[node.name], node.name))
                for _, nodes in sorted(by_type.items(), key=lambda item: item[0] or "")
                if len(nodes) >= count
            ]
            if choices:
                best = max(choices, key=lambda nodes: sum(self._free[n.name] for n in nodes[:count]))
                return tuple(node.name for node in best[:count])
        return ()

    def take(self, job: ProblemJob, names: Sequence[str]) -> None:
        share = job.min_gpus // len(names)
        for name in names:
            self._subtract(job, name, share)
            self._free[name] -= share
        if len(names) > 1:
            self._spanned.update(names)

    def _subtract(self, job: ProblemJob, name: str, gpus: int) -> None:
        self._left[name] = [
            left - part for left, part in zip(self._left[name], _need(job, gpus), strict=True)
        ]


def _need(job: ProblemJob, gpus: int) -> tuple[int, int, int]:
    return gpus, gpus * job.cpus_per_gpu, gpus * job.memory_per_gpu_mb
