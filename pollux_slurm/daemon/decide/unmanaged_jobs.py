"""Reserve GPUs for unmanaged jobs: those that are next in the queue, and a share of each partition. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from pollux_slurm.config import PolicyConfig
from pollux_slurm.daemon.decide.lent_gpus import gives_way
from pollux_slurm.daemon.decide.problem_building import UsableNodes
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.daemon.observe.waiting_jobs import KEEPS_ORDER, MAX_UNMANAGED, head_of_queue
from pollux_slurm.model import JobState, NodeCapacity, ProblemJob, SlurmJob

# Of a wide job, so many nodes at most take part in a round.
_MAX_PARTS = 64


def next_unmanaged_jobs(
    picture: Picture, usable: UsableNodes, policy: PolicyConfig, *, takes_part: Container[str]
) -> tuple[ProblemJob, ...]:
    """Return pending unmanaged jobs that are next in the queue, as rigid jobs of the problem.

    These wait only for resources, could start on what is free and what is lent, and have a higher priority
    than every pending adaptive job that `takes_part` in the round in their partition. What a job needs is not
    there for those behind it: else a round makes room for a small one, which starts neither. They have no
    model and are never moved. The decision keeps nodes free for them, and Slurm starts them there.
    """
    if not policy.yields_to_pending:
        return ()
    room = _room_to_make(picture)
    highest: dict[str, int] = {}
    for pending in picture.managed:
        shown = pending.slurm
        if (
            shown.state is JobState.PENDING
            and shown.job_id in takes_part
            and pending.record.paused_at is None
            and _can_be_placed(pending, picture, usable)
        ):
            for name in shown.partitions:
                highest[name] = max(highest.get(name, 0), shown.priority or 0)
    adaptive = {job.slurm.job_id for job in picture.managed}
    found: list[ProblemJob] = []
    num_jobs = 0
    for job in head_of_queue(picture.snapshot.jobs, adaptive):
        if (job.priority or 0) <= max(highest.get(name, 0) for name in job.partitions):
            continue
        parts = _as_problem_jobs(job, picture, usable, room)
        for part in parts:
            _take(room, part)
        num_jobs += bool(parts)
        found += parts
        if num_jobs == MAX_UNMANAGED:
            break
    return tuple(found)


def wait_in_order(picture: Picture, policy: PolicyConfig) -> Picture:
    """Return the picture in which new jobs wait for an unmanaged one before them in the queue.

    Rounds would start them on what running jobs give up, until the cluster is full of them. One that ends by
    its time limit before Slurm expects the other to start takes nothing from it.
    """
    if not policy.yields_to_pending:
        return picture
    first: dict[str, SlurmJob] = {}
    for other in head_of_queue(picture.snapshot.jobs, {job.slurm.job_id for job in picture.managed}):
        for name in other.partitions if other.reason in KEEPS_ORDER else ():
            first.setdefault(name, other)
    return dataclasses.replace(
        picture, managed=tuple(_in_order(job, first, picture.snapshot.read_at) for job in picture.managed)
    )


def _in_order(job: ManagedJob, first: Mapping[str, SlurmJob], now: datetime) -> ManagedJob:
    shown = job.slurm
    if shown.state is not JobState.PENDING or shown.restart_count > 0 or job.in_flight:
        return job
    for other in (first[name] for name in shown.partitions if name in first):
        if (other.priority or 0) > (shown.priority or 0) and not _ends_before(shown, other, now):
            because = "a job that is not adaptive stands before it in the queue, and waits for resources"
            return dataclasses.replace(job, not_moved_because=job.not_moved_because or because)
    return job


def _ends_before(job: SlurmJob, other: SlurmJob, now: datetime) -> bool:
    if job.time_limit_s is None or other.expected_start_at is None:
        return False
    return now + timedelta(seconds=job.time_limit_s) <= other.expected_start_at


def _can_be_placed(job: ManagedJob, picture: Picture, usable: UsableNodes) -> bool:
    """Whether all nodes that a pending adaptive job may use have its minimum of GPUs together."""
    names = usable.by(job.slurm, job.record.required_nodes)
    total = sum(
        min(node.num_gpus, node.num_cpus // max(job.record.cpus_per_gpu, 1))
        for node in picture.nodes
        if node.accepts_new and (names is None or node.name in names)
    )
    return total >= job.record.terms.min_gpus


def _room_to_make(picture: Picture) -> dict[str, tuple[int, int]]:
    """Return each node's GPUs and CPUs without what adaptive jobs keep in this round.

    Those that are on one node alone keep what is their own. Those that move keep all of their target, unless
    they may give way.
    """
    room = {node.name: (node.num_gpus, node.num_cpus) for node in picture.nodes if node.accepts_new}
    for job in picture.managed:
        move = job.record.open_reallocation
        if move is not None and not gives_way(job, picture.snapshot.read_at):
            keeps = move.target.as_dict()
        else:
            has = job.slurm.allocation
            keeps = {name: min(job.own_gpus, gpus) for name, gpus in has.gpus_by_node if len(has.nodes) == 1}
        for name in keeps.keys() & room.keys():
            gpus, cpus = room[name]
            room[name] = (gpus - keeps[name], cpus - keeps[name] * job.record.cpus_per_gpu)
    return room


def _with_room(
    room: Mapping[str, tuple[int, int]], names: Container[str] | None, *, gpus: int, cpus: int
) -> list[str]:
    """Return those of the nodes `names`, None for all, that have room for so many GPUs and CPUs."""
    return [
        name
        for name, (free_gpus, free_cpus) in room.items()
        if free_gpus >= gpus and free_cpus >= cpus and (names is None or name in names)
    ]


def _take(room: dict[str, tuple[int, int]], job: ProblemJob) -> None:
    """Take what a job needs from the fullest node that has room for it, if any has."""
    gpus, cpus = job.min_gpus, job.min_gpus * job.cpus_per_gpu
    fitting = _with_room(room, job.partition_nodes, gpus=gpus, cpus=cpus)
    if fitting:
        fullest = min(fitting, key=lambda name: (room[name][0], name))
        free_gpus, free_cpus = room[fullest]
        room[fullest] = (free_gpus - gpus, free_cpus - cpus)


def _as_problem_jobs(
    job: SlurmJob, picture: Picture, usable: UsableNodes, room: Mapping[str, tuple[int, int]]
) -> list[ProblemJob]:
    """Return the job; one for each of its nodes where it asks for several; none if it could not start.

    Without GPUs, it counts as a job of one GPU with its CPUs: to free CPUs is to free GPUs.
    """
    names = usable.by(job, job.required_nodes)
    parts = min(job.num_nodes, _MAX_PARTS)
    gpus = max(math.ceil(job.requested_gpus / parts), 1)
    if parts > 1 or not job.requested_gpus:
        cpus = max(math.ceil(job.num_cpus / job.num_nodes), gpus * (job.cpus_per_gpu or 0))
        fitting = _with_room(room, names, gpus=gpus, cpus=cpus)
        if len(fitting) < parts and parts > 1:
            fitting = _together(picture, names, room, parts=parts, gpus=gpus, cpus=cpus)
        if len(fitting) < parts:
            return []
        if parts > 1:
            # First where least is to be given back.
            idle = {node.name: node.num_gpus - node.used_gpus for node in picture.snapshot.nodes}
            fitting.sort(key=lambda name: (-min(idle[name], gpus), room[name][0], name))
            return [
                _part(job, picture, gpus=gpus, cpus=cpus, number=number, names=frozenset({name}))
                for number, name in enumerate(fitting[:parts])
            ]
        return [_part(job, picture, gpus=1, cpus=cpus, number=0, names=frozenset(fitting))]
    # Adaptive jobs may move together: where no node has the room, all nodes may have it.
    if sum(free for name, (free, _) in room.items() if names is None or name in names) < job.requested_gpus:
        return []
    cpus = _cpus_per_gpu(job, picture, names) * job.requested_gpus
    part = _part(job, picture, gpus=job.requested_gpus, cpus=cpus, number=0, names=names)
    # From 24.11 on, Slurm shows one node as the most, also of a job that leaves that to it and needs several.
    fits_on_one = any(
        node.num_gpus >= job.requested_gpus for node in picture.nodes if names is None or node.name in names
    )
    return [dataclasses.replace(part, one_node=job.max_nodes == 1 and fits_on_one)]


def _together(
    picture: Picture,
    names: Container[str] | None,
    room: Mapping[str, tuple[int, int]],
    *,
    parts: int,
    gpus: int,
    cpus: int,
) -> list[str]:
    """Return the nodes that are large enough for a part each, where there is room for all parts in all.

    Adaptive jobs may move together: then they leave more nodes than where they are.
    """
    found = [
        node.name
        for node in picture.nodes
        if node.accepts_new
        and (names is None or node.name in names)
        and node.num_gpus >= gpus
        and node.num_cpus >= cpus
    ]
    free_gpus, free_cpus = (
        sum(max(free[kind], 0) for name, free in room.items() if names is None or name in names)
        for kind in (0, 1)
    )
    return found if free_gpus >= gpus * parts and free_cpus >= cpus * parts else []


def _part(
    job: SlurmJob, picture: Picture, *, gpus: int, cpus: int, number: int, names: frozenset[str] | None
) -> ProblemJob:
    since = job.submitted_at or picture.snapshot.read_at
    return ProblemJob(
        job_id=f"{job.job_id}/{number}" if number else job.job_id,
        min_gpus=gpus,
        max_gpus=gpus,
        cpus_per_gpu=math.ceil(cpus / gpus),
        memory_per_gpu_mb=job.memory_per_gpu_mb or 0,
        waiting_s=max((picture.snapshot.read_at - since).total_seconds(), 0.0),
        partition_nodes=names,
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
