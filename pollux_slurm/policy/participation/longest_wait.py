"""A bound on waiting: a job that has waited for `Problem.max_wait_s` starves, and others cannot overtake it.

Under every objective, a round serves as many waiting jobs as possible. A job that needs many GPUs may then
wait for ever, while smaller and newer jobs take each GPU that becomes free. So nodes for its minimum are kept
free of newcomers, and GPUs that become free there add up. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from pollux_slurm.model import GpuLimit, NodeCapacity, Problem, ProblemJob
from pollux_slurm.policy.participation.user_shares import group_of

# Nodes are kept for at most so many starving jobs, and at most this part of all nodes, but always enough for
# one job.
MOST_JOBS = 16
MOST_KEPT = 0.5


def restrict_newcomers(problem: Problem, jobs: Sequence[ProblemJob]) -> list[ProblemJob]:
    """Return `jobs`, in which only starving jobs may use the nodes that are kept for them.

    A job that already runs on a kept node may stay, shrink and grow there: it shrinks in the round in which
    the starving job can start. All other jobs lose the kept nodes. Where a starving job waits for a limit, no
    other job under that limit starts.
    """
    if problem.max_wait_s is None:
        return list(jobs)
    waiting = [job for job in jobs if not job.current and not job.pinned]
    starving = [job for job in waiting if job.waiting_s >= problem.max_wait_s]
    if not starving:
        return list(jobs)
    starving = _in_turn(problem, starving)
    room = _Room(problem, jobs)
    most = int(MOST_KEPT * len(problem.nodes))
    kept: set[str] = set()
    under_full_limit: set[str] = set()
    first: set[str] = set()
    limits = [_LimitUse.of(limit, jobs) for limit in problem.limits]
    for job in starving[:MOST_JOBS]:
        blocked = [limit for limit in limits if limit.blocks(job)]
        if blocked:
            under_full_limit.update(*(limit.job_ids for limit in blocked))
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
        elif not job.current and job.job_id in under_full_limit:
            result.append(dataclasses.replace(job, partition_nodes=frozenset()))
        elif not kept or kept.intersection(job.current.nodes):
            result.append(job)
        else:
            own = job.partition_nodes
            if own not in left:
                left[own] = (own or frozenset()) - kept
            result.append(dataclasses.replace(job, partition_nodes=left[own]))
    return result


def _in_turn(problem: Problem, starving: Sequence[ProblemJob]) -> list[ProblemJob]:
    """Return the longest waiting job of each user, then the second of each, and so on."""
    turns: Counter[str] = Counter()
    order = []
    for job in sorted(starving, key=lambda job: (-job.waiting_s, job.job_id)):
        name = group_of(job, problem.objective.between)
        order.append((0 if name is None else turns[name], job))
        if name is not None:
            turns[name] += 1
    return [job for _, job in sorted(order, key=itemgetter(0))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LimitUse:
    """A limit with the jobs under it, and how many GPUs they have."""

    job_ids: frozenset[str]
    max_gpus: int
    used: int

    @classmethod
    def of(cls, limit: GpuLimit, jobs: Sequence[ProblemJob]) -> _LimitUse:
        inside = list(itertools.compress(jobs, limit.members(jobs)))
        return cls(
            job_ids=frozenset(job.job_id for job in inside),
            max_gpus=limit.max_gpus,
            used=sum(job.current.num_gpus for job in inside),
        )

    def blocks(self, job: ProblemJob) -> bool:
        """Return whether `job` is under the limit, and other jobs leave it less than its minimum."""
        return job.job_id in self.job_ids and self.used + job.min_gpus > self.max_gpus >= job.min_gpus


class _Room:
    """What each node has for starving jobs, beside pinned ones, and how many of its GPUs are free already."""

    def __init__(self, problem: Problem, jobs: Sequence[ProblemJob]) -> None:
        self._nodes = {node.name: node for node in problem.nodes if node.accepts_new}
        self._left = {node.name: [node.num_gpus, node.num_cpus, node.memory_mb] for node in problem.nodes}
        self._free = {node.name: node.num_gpus for node in problem.nodes}
        # Nodes with a pinned job over several nodes: no second such job may use them.
        self._spanned: set[str] = set()
        for job in jobs:
            for name, gpus in job.current.gpus_by_node:
                self._free[name] -= gpus
                if job.pinned:
                    self._subtract(job, name, gpus)
            if job.pinned and job.current.num_nodes > 1:
                self._spanned.update(job.current.nodes)

    def choose(self, job: ProblemJob, *, prefer: set[str]) -> tuple[str, ...]:
        """Return the fewest nodes for a job's minimum, those with most free GPUs; () where none suffice."""
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
                    need <= left for need, left in zip(job.takes(share), self._left[node.name], strict=True)
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
        """Give a job its minimum, in equal shares, on these nodes."""
        share = job.min_gpus // len(names)
        for name in names:
            self._subtract(job, name, share)
            self._free[name] -= share
        if len(names) > 1:
            self._spanned.update(names)

    def _subtract(self, job: ProblemJob, name: str, gpus: int) -> None:
        self._left[name] = [left - part for left, part in zip(self._left[name], job.takes(gpus), strict=True)]
