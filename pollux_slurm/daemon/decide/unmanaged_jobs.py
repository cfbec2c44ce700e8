"""What is kept for jobs that are not ours: their turn in the queue, and a share of each partition. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pollux_slurm.config import PolicyConfig
from pollux_slurm.daemon.decide.problem_building import UsableNodes
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.model import JobState, NodeCapacity, ProblemJob, SlurmJob

# Slurm's words for a job that waits for nothing but room.
_WAITS_FOR_ROOM = frozenset({"Resources", "Priority"})
# Only the head of the queue is next; the rest has its turn in later rounds.
MOST_IN_TURN = 10


def jobs_in_turn(picture: Picture, usable: UsableNodes, policy: PolicyConfig) -> tuple[ProblemJob, ...]:
    """Return waiting neighbours whose turn it is before any waiting adaptive job, as jobs of the problem.

    Each is rigid, has no model, and is never moved: it is there so that a place for it is decided on, which
    adaptive jobs then leave or do not grow into, and Slurm starts it there in its own time. Counted are jobs
    that wait for room alone, with a priority above that of every adaptive job that waits in their partition.
    """
    if not policy.yields_to_pending:
        return ()
    ours = {job.slurm.job_id for job in picture.managed}
    bars: dict[str, int] = {}
    for job in picture.managed:
        if job.slurm.state is JobState.PENDING and job.record.paused_at is None:
            for name in job.slurm.partitions:
                bars[name] = max(bars.get(name, 0), job.slurm.priority or 0)
    waiting = [
        job
        for job in picture.snapshot.jobs
        if job.job_id not in ours
        and job.state is JobState.PENDING
        and not job.held
        and job.reason in _WAITS_FOR_ROOM
        and job.requested_gpus > 0
        and (job.priority or 0) > max(bars.get(name, 0) for name in job.partitions)
    ]
    waiting.sort(key=lambda job: (-(job.priority or 0), int(job.job_id)))
    return tuple(_as_problem_job(job, picture, usable) for job in waiting[:MOST_IN_TURN])


def _as_problem_job(job: SlurmJob, picture: Picture, usable: UsableNodes) -> ProblemJob:
    since = job.submitted_at or picture.snapshot.read_at
    return ProblemJob(
        job_id=job.job_id,
        min_gpus=job.requested_gpus,
        max_gpus=job.requested_gpus,
        cpus_per_gpu=job.cpus_per_gpu or max(math.ceil(job.num_cpus / job.requested_gpus), 0),
        memory_per_gpu_mb=job.memory_per_gpu_mb or 0,
        waiting_s=max((picture.snapshot.read_at - since).total_seconds(), 0.0),
        partition_nodes=usable.by(job, job.required_nodes),
        rigid=True,
    )


def keep_shares(
    nodes: Sequence[NodeCapacity], picture: Picture, shares: Iterable[tuple[str, float]]
) -> tuple[NodeCapacity, ...]:
    """Return the nodes less what is kept free of adaptive jobs: a share of each named partition's GPUs.

    What neighbours hold counts towards it. The emptiest nodes are kept first, so that a wide job finds whole
    ones. Who runs there already may stay; nothing starts or grows into what is kept.
    """
    room = {node.name: node.num_gpus for node in nodes}
    held = _held_by_ours(picture.managed)
    for partition, share in shares:
        members = [node for node in picture.snapshot.nodes if partition in node.partitions]
        total = sum(node.num_gpus for node in members)
        theirs = sum(max(node.used_gpus - held.get(node.name, 0), 0) for node in members)
        missing = math.ceil(share * total - 1e-9) - theirs
        order = sorted(members, key=lambda node: (held.get(node.name, 0) - room[node.name], node.name))
        for node in order:
            taken = min(max(missing, 0), room[node.name])
            room[node.name] -= taken
            missing -= taken
    return tuple(
        NodeCapacity(
            name=node.name,
            gpu_type=node.gpu_type,
            num_gpus=room[node.name],
            num_cpus=node.num_cpus,
            memory_mb=node.memory_mb,
            accepts_new=node.accepts_new,
        )
        for node in nodes
    )


def _held_by_ours(managed: Iterable[ManagedJob]) -> dict[str, int]:
    held: dict[str, int] = {}
    for job in managed:
        for node, gpus in job.slurm.allocation.gpus_by_node:
            held[node] = held.get(node, 0) + gpus
    return held
