"""The metrics of GPUs: who has the cluster's, and how many are idle while adaptive jobs wait. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable

from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.model import ClusterSnapshot, JobState

GPU_STATES = ("adaptive", "other", "free", "unavailable")


def gpus_by_state(picture: Picture) -> Counter[tuple[str, str]]:
    """Return GPUs by (state, GPU type), all of which add up to the cluster's.

    `adaptive` are GPUs of managed jobs, `other` those of all other jobs. `unavailable` have no job, and their
    node is down, drained, failing or reserved. The type is empty where GRES names none.
    """
    adaptive: Counter[str] = Counter()
    for job in picture.managed:
        for node_name, num_gpus in job.slurm.allocation.gpus_by_node:
            adaptive[node_name] += num_gpus
    found: Counter[tuple[str, str]] = Counter()
    for node in picture.snapshot.nodes:
        used = min(node.used_gpus, node.num_gpus)
        # A job that ended between the reads of jobs and nodes is shown by one of them only.
        managed = min(adaptive[node.name], used)
        left = node.num_gpus - used
        counts = (managed, used - managed, left * node.available, left * (not node.available))
        for state, num_gpus in zip(GPU_STATES, counts, strict=True):
            found[state, node.gpu_type or ""] += num_gpus
    return found


def idle_while_waiting(picture: Picture, moved: Container[str]) -> int:
    """Return the free GPUs on which an adaptive job that waits could run.

    A job waits where it is pending, neither its owner, Slurm nor a doubt keeps it there, and no move gives
    it GPUs: `moved` are the jobs that this round moves. A job counts where the GPUs that it may use are
    enough for its minimum, and with its maximum at most.
    """
    waiting = [job for job in picture.managed if _waits(job) and job.slurm.job_id not in moved]
    usable: set[str] = set()
    wanted = 0
    for job in waiting:
        free = dict(_free_for(job, picture.snapshot))
        total = sum(free.values())
        if total >= max(job.record.terms.min_gpus, 1):
            usable |= free.keys()
            most = job.record.terms.max_gpus
            wanted += total if most is None else min(total, most)
    return min(
        sum(node.num_gpus - node.used_gpus for node in picture.snapshot.nodes if node.name in usable), wanted
    )


def _waits(job: ManagedJob) -> bool:
    shown = job.slurm
    return (
        shown.state is JobState.PENDING
        and not (shown.held or job.in_flight or shown.allocation)
        and shown.blocked_because is None
        and shown.unschedulable_reason is None
        and job.not_moved_because is None
    )


def _free_for(job: ManagedJob, snapshot: ClusterSnapshot) -> Iterable[tuple[str, int]]:
    for node in snapshot.nodes:
        free = node.num_gpus - node.used_gpus
        if (
            node.available
            and free > 0
            and job.slurm.may_run_on(node, job.record.required_nodes, at=snapshot.read_at)
        ):
            yield node.name, free
