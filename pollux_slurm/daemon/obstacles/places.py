"""Whether a job keeps its place when it moves by requeue: what waits for the GPUs that it leaves. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

from pollux_slurm.model import Allocation, ClusterSnapshot, JobState, SlurmJob, SlurmNode

# A time limit is in whole minutes, and a move takes a part of one.
_SLACK = timedelta(seconds=90)
_BEGINS_SOON = timedelta(seconds=60)
# Slurm's reasons for a job that waits for a limit, as far as a job that is held frees a place under it.
_OF_ONE_USER = frozenset({"AssocMaxJobsLimit", "AssociationJobLimit"})
_OF_GROUPS_JOBS = frozenset({"AssocGrpJobsLimit", "QOSGrpJobsLimit"})
_ENDS_OF_RESOURCES = ("GRES", "CpuLimit", "NodeLimit", "MemLimit", "Memory")


def waiting_jobs(snapshot: ClusterSnapshot) -> tuple[SlurmJob, ...]:
    """Return the jobs that wait and are not held."""
    return tuple(job for job in snapshot.jobs if job.state is JobState.PENDING and not job.held)


def waits_there(job: SlurmJob, nodes: Iterable[SlurmNode]) -> bool:
    """Whether a job waits that Slurm may start on one of these nodes."""
    return (
        job.state is JobState.PENDING
        and not job.held
        and job.blocked_because is None
        and any(job.may_run_on(node, job.required_nodes) for node in nodes)
    )


def nodes_to_reserve(
    job_id: str, nodes: Sequence[SlurmNode], snapshot: ClusterSnapshot
) -> Sequence[SlurmNode]:
    """Return a moving job's `nodes`, and others that the first job which waits there needs beside them.

    With its own alone reserved, Slurm passes that job over, and starts those behind it on the rest (22.05).
    None where no job waits there.
    """
    waiting = [other for other in snapshot.jobs if other.job_id != job_id and waits_there(other, nodes)]
    if not waiting:
        return ()
    first = max(waiting, key=lambda other: (other.priority or 0, -int(other.job_id)))
    names = {node.name for node in nodes}
    gpus, cpus = (math.ceil(all_ / first.num_nodes) for all_ in (first.requested_gpus, first.num_cpus))
    rest = [
        node
        for node in snapshot.nodes
        if node.name not in names
        and node.available
        and first.may_run_on(node, first.required_nodes)
        and node.num_gpus >= gpus
        and node.num_cpus >= cpus
    ]
    return nodes if len(rest) >= first.num_nodes else (*nodes, *rest)


def priorities_beside(job: SlurmJob, snapshot: ClusterSnapshot) -> dict[str, int]:
    """Return the priorities of the other jobs, wings too, that wait for nodes which this one may use, by job.

    Partitions may share nodes: what waits in one of these counts, whatever its name.
    """
    own = frozenset(job.partitions)
    sharing = own.union(*(node.partitions for node in snapshot.nodes if not own.isdisjoint(node.partitions)))
    return {
        other.job_id: other.priority
        for listed in snapshot.jobs
        for other in (listed, *listed.wings)
        if other.state is JobState.PENDING
        and other.job_id != job.job_id
        and other.priority is not None
        and not sharing.isdisjoint(other.partitions)
    }


def loses_place_because(
    job: SlurmJob, waiting: Collection[SlurmJob], snapshot: ClusterSnapshot
) -> str | None:
    """Return which waiting job could start on what a requeue of a running job frees; None for none."""
    has = job.allocation.as_dict()
    left = [node for node in snapshot.nodes if node.name in has]
    rest = [node for node in snapshot.nodes if node.name not in has]
    # Thousands wait with the same few requests.
    known = set()
    for other in waiting:
        if other.job_id == job.job_id or other.blocked_because is not None:
            continue
        if other.begins_at is not None and other.begins_at - snapshot.read_at > _BEGINS_SOON:
            continue
        request = (
            *(other.partition, other.requested_gpu_type, other.feature_sets),
            *(other.excluded_nodes, other.required_nodes),
            *(other.num_nodes, other.requested_gpus, other.num_cpus),
        )
        if request in known:
            continue
        known.add(request)
        if _could_start(other, job, left, rest):
            return f"job {other.job_id} waits, and would get the GPUs that a move leaves for a moment"
    return None


def _could_start(
    other: SlurmJob, job: SlurmJob, left: Iterable[SlurmNode], rest: Iterable[SlurmNode]
) -> bool:
    """Whether there is room for a waiting job once a running one has `left` its nodes, beside the `rest`."""
    gpus, cpus = job.allocation.as_dict(), dict(job.cpus_by_node)
    per_node = math.ceil(other.requested_gpus / other.num_nodes)
    cpus_per_node = math.ceil(other.num_cpus / other.num_nodes)

    def fits(node: SlurmNode) -> bool:
        return (
            node.available
            and other.may_run_on(node, other.required_nodes)
            and node.num_gpus - node.used_gpus + gpus.get(node.name, 0) >= per_node
            and node.num_cpus - node.used_cpus + cpus.get(node.name, 0) >= cpus_per_node
        )

    # Without one of the nodes that are left, the other could start anyway, or never.
    num_left = sum(map(fits, left))
    lacking = max(other.num_nodes - num_left, 0)
    return num_left > 0 and len(list(itertools.islice(filter(fits, rest), lacking))) == lacking


def delays_because(
    job: SlurmJob,
    target: Allocation,
    waiting: Collection[SlurmJob],
    snapshot: ClusterSnapshot,
    decided: Collection[str] = (),
) -> str | None:
    """Return which waiting job would start later if a running job had more GPUs somewhere; None for none.

    GPUs that it held before, and those that it leaves before Slurm expects the other to start, are its own.
    Jobs that are `decided` about get what the decision has for them.
    """
    has = job.allocation.as_dict()
    gained = {node: gpus for node, gpus in target.gpus_by_node if gpus > has.get(node, 0)}
    if not gained or not waiting:
        return None
    nodes = [node for node in snapshot.nodes if node.name in gained]
    beside: dict[str, list[tuple[SlurmJob, int]]] = {node: [] for node in gained}
    for one in snapshot.jobs:
        if one.state is JobState.RUNNING and one.job_id != job.job_id:
            for name, gpus in one.allocation.gpus_by_node:
                if name in beside:
                    beside[name].append((one, gpus))
    for other in waiting:
        starts_at = other.expected_start_at
        if other.job_id == job.job_id or other.job_id in decided or starts_at is None:
            continue
        if _ends_by(job, starts_at, snapshot.read_at):
            continue
        per_node = math.ceil(other.requested_gpus / other.num_nodes)
        for node in nodes:
            # Else it starts elsewhere, or needs no GPU.
            if not 0 < per_node <= node.num_gpus or not waits_there(other, [node]):
                continue
            stay = sum(
                gpus for one, gpus in beside[node.name] if not _ends_by(one, starts_at, snapshot.read_at)
            )
            if node.num_gpus - stay - target.as_dict()[node.name] < per_node:
                return f"job {other.job_id} is to start there at {starts_at:%H:%M:%S} UTC"
    return None


def _ends_by(one: SlurmJob, starts_at: datetime, now: datetime) -> bool:
    """Whether a running job ends by its time limit before Slurm expects another to start."""
    left_s = one.time_left_s(now)
    return left_s is not None and now + timedelta(seconds=left_s) <= starts_at + _SLACK


def cannot_return_because(job: SlurmJob, snapshot: ClusterSnapshot, *, longest_s: float) -> str | None:
    """Return why a running job, once stopped for a move that fails, might not get its nodes back."""
    latest, has = snapshot.read_at + timedelta(seconds=longest_s), job.allocation.as_dict()
    for node in snapshot.nodes:
        if node.reserved_from is None or node.reserved_from > latest or node.name not in has:
            continue
        if not job.may_run_on(node, at=snapshot.read_at):
            begins = f"{node.reserved_from:%H:%M:%S}"
            return f"{node.name} is reserved from {begins} UTC on: after a failed move it could not return"
    return None


def ends_too_soon_because(job: SlurmJob, now: datetime, *, move_s: float, longest_s: float) -> str | None:
    """Return why a running job is not moved any more by its time limit or --deadline; None where it may be.

    `move_s` is what a move costs it, and `longest_s` how long it may be without GPUs at worst.
    """
    left_s = job.time_left_s(now)
    if left_s is not None and left_s < move_s:
        return f"its time limit leaves it {left_s:.0f} s, and a move costs it {move_s:.0f} s"
    if job.deadline_at is None:
        return None
    # Slurm ends a waiting job that would not have its whole time limit before the deadline.
    if left_s is None or now + timedelta(seconds=left_s + longest_s) + _SLACK > job.deadline_at:
        return f"after a move it might not end before its --deadline, {job.deadline_at:%Y-%m-%d %H:%M:%S} UTC"
    return None


def frees_slot_because(job: SlurmJob, waiting: Collection[SlurmJob]) -> str | None:
    """Return which job waits for a limit that a requeue of a running job would let it start under.

    While the job is held, it does not count for limits on running jobs. For limits of groups the numbers
    decide: someone always waits for that of a whole site.
    """
    for other in waiting:
        if other.job_id != job.job_id and _waits_for_slot_of(other, job):
            return f"job {other.job_id} waits for a limit that counts this job ({other.reason})"
    return None


def _waits_for_slot_of(other: SlurmJob, job: SlurmJob) -> bool:
    reason = other.reason
    if reason == "JobArrayTaskLimit":
        return other.array_id is not None and other.array_id == job.array_id
    same_group = other.qos == job.qos if reason.startswith("QOS") else other.account == job.account
    if "PerUser" in reason or reason in _OF_ONE_USER:
        return same_group and other.user_id == job.user_id
    if "JobsPerAccount" in reason or reason in _OF_GROUPS_JOBS:
        return same_group
    if "PerAccount" in reason:  # of resources, set by a QOS: QOSMaxCpuPerAccountLimit, MaxGRESPerAccount
        same_group = other.account == job.account and other.qos == job.qos
        return same_group and other.requested_gpus <= job.allocation.num_gpus
    is_of_group = reason.startswith(("QOSGrp", "AssocGrp")) and reason.endswith(_ENDS_OF_RESOURCES)
    return is_of_group and same_group and other.requested_gpus <= job.allocation.num_gpus
