"""Which anchors must leave their nodes.

An anchor takes one CPU of a node of which its training may have no GPU. Slurm starts it where others are, as
it does every small job (22.05). It must leave a node that is drained, and one where anchors alone keep a job
of others out that waits for whole nodes with GPUs, or for all of their CPUs.

The second costs a training a start, and the job may not start there after all: Slurm may lack something that
no read shows. So an anchor stays twice as long after each time that it was requeued. And within an hour
anchors leave for one job of a user only: else it could be submitted again and again to stop trainings.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from pollux_slurm.model import ClusterSnapshot, JobState, SlurmJob, SlurmNode
from pollux_slurm.slurm.parsing.comment_terms import decode_comment
from pollux_slurm.slurm.parsing.wing_comment import parse_wing_comment

# How long an anchor stays that was never requeued; twelve requeues make it six days.
_STAYS, _MOST_DOUBLED = timedelta(minutes=2), 12
# Only the head of the queue: each is compared with all nodes.
_MAX_WAITING = 10
_ONE_JOB_EACH = timedelta(hours=1)


class Leaving(NamedTuple):
    """Why an anchor must leave its node; `waiting` is the job that it leaves for, None for a drained node."""

    because: str
    waiting: SlurmJob | None = None


class Clearances:
    """For which job of each user anchors leave, and which: for an hour these, each of them once."""

    def __init__(self) -> None:
        self._of_user: dict[int, tuple[datetime, set[str]]] = {}

    def allowed(self, leaving: Mapping[str, Leaving], at: datetime) -> dict[str, str]:
        """Return why anchors leave, without those whose user has had an hour's job."""
        self._of_user = {
            user_id: (since, anchors)
            for user_id, (since, anchors) in self._of_user.items()
            if at - since < _ONE_JOB_EACH
        }
        found = {}
        for anchor_id, (because, waiting) in leaving.items():
            if waiting is not None:
                anchors = {number for number, other in leaving.items() if other.waiting is waiting}
                if anchor_id not in self._of_user.setdefault(waiting.user_id, (at, anchors))[1]:
                    continue
            found[anchor_id] = because
        return found

    def note_left(self, anchor_id: str) -> None:
        """Take note of an anchor that was requeued."""
        for _, anchors in self._of_user.values():
            anchors.discard(anchor_id)


def anchors_to_move(snapshot: ClusterSnapshot, anchors: Iterable[SlurmJob]) -> Mapping[str, Leaving]:
    """Return which anchors must leave their nodes, by job id. `snapshot` has each job alone. Pure."""
    by_node: defaultdict[str, list[SlurmJob]] = defaultdict(list)
    for anchor in anchors:
        for name, _ in anchor.cpus_by_node if anchor.state is JobState.RUNNING else ():
            by_node[name].append(anchor)
    at, nodes = snapshot.read_at, [node for node in snapshot.nodes if node.name in by_node]
    because = {
        anchor.job_id: Leaving(f"its anchor leaves {node.name}, which is drained")
        for node in nodes
        if node.draining and node.responds
        for anchor in by_node[node.name]
    }
    may_be_cleared = [
        node
        for node in nodes
        if node.num_gpus and all(_may_leave(anchor, snapshot) for anchor in by_node[node.name])
    ]
    for job in _waiting(snapshot.jobs) if may_be_cleared else ():
        cleared = [
            node
            for node in may_be_cleared
            if not _fits(job, node, (), at) and _fits(job, node, by_node[node.name], at)
        ]
        if not cleared:
            continue
        lacking = job.num_nodes - sum(_fits(job, node, (), at) for node in snapshot.nodes)
        if not 0 < lacking <= len(cleared):
            continue
        for node in sorted(cleared, key=lambda node: len(by_node[node.name]))[:lacking]:
            for anchor in by_node[node.name]:
                text = f"its anchor leaves {node.name}, for which job {job.job_id} waits"
                because.setdefault(anchor.job_id, Leaving(text, job))
    return because


def _may_leave(anchor: SlurmJob, snapshot: ClusterSnapshot) -> bool:
    stays = _STAYS * 2 ** min(anchor.restart_count, _MOST_DOUBLED)
    return anchor.started_at is not None and snapshot.read_at - anchor.started_at >= stays


def _waiting(jobs: Sequence[SlurmJob]) -> list[SlurmJob]:
    """Return the jobs whose turn it is, and that no daemon could give another shape."""
    found = [
        job
        for job in jobs
        if job.state is JobState.PENDING
        and job.reason == "Resources"  # those whose turn it is not have "Priority"
        and (job.requested_gpus or job.exclusive)
        and parse_wing_comment(job.comment) is None
        and decode_comment(job.comment) is None
    ]
    return sorted(found, key=lambda job: -(job.priority or 0))[:_MAX_WAITING]


def _fits(job: SlurmJob, node: SlurmNode, without: Iterable[SlurmJob], at: datetime) -> bool:
    """Whether a node has room for an even part of a job, once some of its jobs have left it."""
    if not node.available or not job.may_run_on(node, job.required_nodes, at=at):
        return False
    used_cpus, used_mb = node.used_cpus, node.used_memory_mb
    for anchor in without:
        used_cpus -= dict(anchor.cpus_by_node).get(node.name, 0)
        used_mb -= dict(anchor.memory_mb_by_node).get(node.name, 0)
    gpus = math.ceil(job.requested_gpus / job.num_nodes)
    # With --cpus-per-gpu, a job that waits shows one CPU (22.05).
    cpus = max(math.ceil(job.num_cpus / job.num_nodes), gpus * (job.cpus_per_gpu or 0))
    if job.exclusive:
        return used_cpus <= 0 and gpus <= node.num_gpus
    return (
        gpus <= node.num_gpus - node.used_gpus
        and cpus <= node.num_cpus - used_cpus
        and gpus * (job.memory_per_gpu_mb or 0) <= node.memory_mb - used_mb
    )
