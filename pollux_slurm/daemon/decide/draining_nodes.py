"""Move jobs off draining nodes where an equal place is free. Pure.

To the objective an equal place is worth nothing, so that a job at its largest size would stay, and the drain,
or `scontrol reboot`, would wait for its end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime

from pollux_slurm.daemon.observe.cluster_picture import Picture
from pollux_slurm.model import Allocation, Decision, NodeCapacity, Problem, ProblemJob, SlurmJob

# A job that ends within so many moves ends the drain soon enough by itself.
_WORTH_MOVES = 10


def leave_draining_nodes(
    problem: Problem, decision: Decision, picture: Picture, *, now: datetime
) -> Decision:
    """Return the decision, in which jobs that would stay on draining nodes move to equal places.

    The place has as many GPUs of the same type on each node, is free once the decision is enacted, and the
    job's time left exceeds ten moves. A job that is held off stays.
    """
    draining = {node.name for node in picture.snapshot.nodes if node.draining}
    if not draining:
        return decision
    room = _Room(problem, decision)
    shown = {job.slurm.job_id: job.slurm for job in picture.managed}
    jobs = {job.job_id: job for job in problem.jobs}
    excluded = {job_id for job_id, _ in decision.excluded}
    changed = []
    for decided in decision.jobs:
        job, slurm = jobs[decided.job_id], shown.get(decided.job_id)
        if (
            slurm is not None
            and job.job_id not in excluded
            and not (job.pinned or job.held_off)
            and decided.allocation == job.current
            and not draining.isdisjoint(job.current.nodes)
            and _is_worth_a_move(job, slurm, now)
            and (place := room.equal_place(job, draining)) is not None
        ):
            decided = dataclasses.replace(decided, allocation=place, move_delay_s=job.restart_delay_s)
        changed.append(decided)
    return dataclasses.replace(decision, jobs=tuple(changed))


def _is_worth_a_move(job: ProblemJob, slurm: SlurmJob, now: datetime) -> bool:
    left_s = slurm.time_left_s(now)
    return left_s is None or left_s > _WORTH_MOVES * job.restart_delay_s


class _Room:
    """The nodes that take new jobs, with what is free of them once a decision is enacted."""

    def __init__(self, problem: Problem, decision: Decision) -> None:
        self._nodes: Mapping[str, NodeCapacity] = {node.name: node for node in problem.nodes}
        self._free = {
            node.name: [node.num_gpus, node.num_cpus, node.memory_mb]
            for node in problem.nodes
            if node.accepts_new
        }
        jobs = {job.job_id: job for job in problem.jobs}
        for decided in decision.jobs:
            for name, gpus in decided.allocation.gpus_by_node:
                self._take(name, jobs[decided.job_id].takes(gpus))

    def equal_place(self, job: ProblemJob, draining: set[str]) -> Allocation | None:
        """Return the job's allocation with other nodes for the draining ones, and take it; None without."""
        place, taken = dict(job.current.gpus_by_node), []
        for name, gpus in job.current.gpus_by_node:
            if name not in draining:
                continue
            need = job.takes(gpus)
            fitting = [
                other
                for other, free in self._free.items()
                if other not in place
                and (job.partition_nodes is None or other in job.partition_nodes)
                and self._nodes[other].gpu_type == self._nodes[name].gpu_type
                and all(has >= wants for has, wants in zip(free, need, strict=True))
            ]
            if not fitting:
                return None
            # Where the fewest GPUs are left over.
            other = min(fitting, key=lambda other: (self._free[other][0], other))
            del place[name]
            place[other] = gpus
            taken.append((other, need))
        for other, need in taken:
            self._take(other, need)
        return Allocation.of(place)

    def _take(self, name: str, need: tuple[int, int, int]) -> None:
        if name in self._free:
            self._free[name] = [has - wants for has, wants in zip(self._free[name], need, strict=True)]
