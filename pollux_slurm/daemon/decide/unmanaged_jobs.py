"""Reserve GPUs for unmanaged jobs: those that are next in the queue, and a share of each partition. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Sequence

from pollux_slurm.config import PolicyConfig
from pollux_slurm.daemon.decide.problem_building import UsableNodes
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.model import JobState, NodeCapacity, ProblemJob, SlurmJob

# Slurm's reasons for a job that waits only for free resources.
_WAITS_FOR_RESOURCES = frozenset({"Resources", "Priority"})
# Only the head of the queue takes part in a round.
MAX_UNMANAGED = 10


def next_unmanaged_jobs(
    picture: Picture, usable: UsableNodes, policy: PolicyConfig
) -> tuple[ProblemJob, ...]:
    """Return pending unmanaged jobs that are next in the queue, as rigid jobs of the problem.

    These wait only for resources, and have a higher priority than every pending adaptive job in their
    partition. They have no model and are never moved. The decision keeps nodes free for them, and Slurm
    starts them there.
    """
    if not policy.yields_to_pending:
        return ()
    adaptive = {job.slurm.job_id for job in picture.managed}
    highest: dict[str, int] = {}
    for job in picture.managed:
        if job.slurm.state is JobState.PENDING and job.record.paused_at is None:
            for name in job.slurm.partitions:
                highest[name] = max(highest.get(name, 0), job.slurm.priority or 0)
    waiting = [
        job
        for job in picture.snapshot.jobs
        if job.job_id not in adaptive
        and job.state is JobState.PENDING
        and not job.held
        and job.reason in _WAITS_FOR_RESOURCES
        and job.requested_gpus > 0
        and (job.priority or 0) > max(highest.get(name, 0) for name in job.partitions)
    ]
    waiting.sort(key=lambda job: (-(job.priority or 0), int(job.job_id)))
    return tuple(_as_problem_job(job, picture, usable) for job in waiting[:MAX_UNMANAGED])


def _as_problem_job(job: SlurmJob, picture: Picture, usable: UsableNodes) -> ProblemJob:
    since = job.submitted_at or picture.snapshot.read_at
    return ProblemJob(
        job_id=job.job_id,
        min_gpus=job.requested_gpus,
        max_gpus=job.requested_gpus,
        cpus_per_gpu=_cpus_per_gpu(job, picture, usable.by(job, job.required_nodes)),
        memory_per_gpu_mb=job.memory_per_gpu_mb or 0,
        waiting_s=max((picture.snapshot.read_at - since).total_seconds(), 0.0),
        partition_nodes=usable.by(job, job.required_nodes),
        rigid=True,
    )


def _cpus_per_gpu(job: SlurmJob, picture: Picture, usable: Container[str] | None) -> int:
    """Return the CPUs per GPU that a job asks for, or fewer where it lacks only those of anchors.

    Anchors leave a node that they alone keep from such a job (`anchor_nodes`). So the job counts as one that
    fits there, and adaptive jobs make room for it. None of `usable` nodes are all.
    """
    wanted = job.cpus_per_gpu or max(math.ceil(job.num_cpus / job.requested_gpus), 0)
    on_node = math.ceil(job.requested_gpus / job.num_nodes)
    rooms = {
        node.name: node.num_cpus
        for node in picture.nodes
        if node.num_gpus >= on_node and (usable is None or node.name in usable)
    }
    if any(room >= wanted * on_node for room in rooms.values()):
        return wanted
    of_anchors = _cpus_of_anchors(picture.managed)
    cleared = [room for name, room in rooms.items() if room + of_anchors[name] >= wanted * on_node]
    return max(cleared, default=wanted * on_node) // on_node


def _cpus_of_anchors(managed: Iterable[ManagedJob]) -> Counter[str]:
    cpus: Counter[str] = Counter()
    for job in managed:
        if job.slurm.wings:
            cpus.update(dict(job.slurm.cpus_by_node))
            for wing in job.slurm.wings:
                cpus.subtract(dict(wing.cpus_by_node))
    return cpus


def reserve_shares(
    nodes: Sequence[NodeCapacity], picture: Picture, shares: Iterable[tuple[str, float]]
) -> tuple[NodeCapacity, ...]:
    """Return the nodes without the `shares` of partitions' GPUs that are reserved for unmanaged jobs.

    GPUs that unmanaged jobs use count towards a share. The emptiest nodes are reserved first, so that a
    multi-node job finds whole nodes. Adaptive jobs already there may stay, but none starts or grows there.
    """
    room = {node.name: node.num_gpus for node in nodes}
    adaptive = _gpus_of_managed(picture.managed)
    for partition, share in shares:
        members = [node for node in picture.snapshot.nodes if partition in node.partitions]
        total = sum(node.num_gpus for node in members)
        unmanaged = sum(max(node.used_gpus - adaptive.get(node.name, 0), 0) for node in members)
        missing = math.ceil(share * total - 1e-9) - unmanaged
        order = sorted(members, key=lambda node: (adaptive.get(node.name, 0) - room[node.name], node.name))
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


def _gpus_of_managed(managed: Iterable[ManagedJob]) -> dict[str, int]:
    gpus_by_node: dict[str, int] = {}
    for job in managed:
        for node, gpus in job.slurm.allocation.gpus_by_node:
            gpus_by_node[node] = gpus_by_node.get(node, 0) + gpus
    return gpus_by_node
