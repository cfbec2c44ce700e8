"""What Slurm shows: nodes, jobs, and the shapes and terms that jobs are given."""

from __future__ import annotations

import enum
from collections.abc import Container
from dataclasses import dataclass, field
from datetime import datetime

from pollux_slurm.model.allocations import Allocation


class JobState(enum.Enum):
    """A job's state as far as scheduling cares. Finer states of Slurm are folded into these at the edge."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"

    @property
    def is_over(self) -> bool:
        return self in _OVER


_OVER = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """One node as Slurm sees it. `gpu_type` is None where GRES carries no type; nodes hold one type each.

    `used_gpus` counts every job's GPUs, and all of a node that gives out shards of GPUs; `available` is False
    for a node that is down, drained, failing or reserved, on which nothing new may start, and `responds` for
    one that slurmctld has given up (DOWN): what ran there may still run. So may it for a moment where such a
    node is back, which is then `settling` (`pollux_slurm.daemon.observe.returned_nodes`).
    `features` are the active ones. `hostname` is the machine's own name, empty where Slurm does not tell.
    `last_busy_at` is when the last job left it or it came back, whichever was later, None where that is not
    told (for one with jobs on it, it may be old).
    """

    name: str
    gpu_type: str | None
    num_gpus: int
    used_gpus: int
    num_cpus: int
    used_cpus: int
    memory_mb: int
    used_memory_mb: int
    available: bool
    state: str
    partitions: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()
    responds: bool = True
    settling: bool = False
    hostname: str = ""
    last_busy_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job as Slurm sees it. `job_id` is Slurm's number as text (`123`; each array task has its own).

    `held` is True for a PENDING job that waits for a release, `held_by_slurm` for one that Slurm gave up
    itself, because it could not start it. `restart_count` grows with each requeue.
    `requested_gpus` is what it asks for in all, `requested_gpu_type` the type that it names, if any, which
    Slurm keeps in every later shape; `allocation` what it holds now (empty unless running or
    completing). `cpus_by_node` and `memory_mb_by_node` are what it holds of each node.
    `unschedulable_reason` says why the daemon may not move it (array master, heterogeneous, not a batch
    job, requeue forbidden, running without its GPUs), None when it may. `begins_at` is when a PENDING job
    may start at the earliest, None for any other and for one that Slurm set no such time. `priority` is
    Slurm's, larger first.
    `memory_by_node` tells that it asked for memory by node, and neither by GPU nor by CPU.

    Where it may run: `partition` names several, with commas, while a job of `-p a,b` waits, and its own while
    it runs. A node must have all features of one of `feature_sets`, if there are any, and none of
    `excluded_nodes` is used. `required_nodes` are those that its request names now: its owner's
    (`--nodelist`), until it is given a shape on named nodes.

    `blocked_because` says why Slurm does not start a PENDING job whatever is free (a dependency, a partition
    that is down, ...). `held_since_requeue` tells that a held job is so since it was requeued, and that no
    administrator has held it since; its owner's hold on top of that leaves no trace in Slurm.
    `last_allocation` is what a job that is over, or completing, had held in its last run. Of a run that was
    suspended, `counted_s` is how long it had run before, and either `suspended_at` or `resumed_at` is set;
    `resized_at` is when GPUs were last taken from it while it ran. Of a COMPLETING job that is
    being requeued, Slurm shows as `started_at` and `ended_at` what it expects of the next run.
    """

    job_id: str
    name: str
    user_name: str
    user_id: int
    account: str
    partition: str
    state: JobState
    held: bool
    reason: str
    comment: str
    allocation: Allocation
    requested_gpus: int
    num_cpus: int
    cpus_per_gpu: int | None
    memory_per_gpu_mb: int | None
    cpus_by_node: tuple[tuple[str, int], ...]
    memory_mb_by_node: tuple[tuple[str, int], ...]
    restart_count: int
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    time_limit_s: float | None
    exit_code: int | None
    unschedulable_reason: str | None = None
    requested_gpu_type: str | None = None
    begins_at: datetime | None = None
    priority: int | None = None
    qos: str = ""
    memory_by_node: bool = False
    held_by_slurm: bool = False
    feature_sets: tuple[frozenset[str], ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    required_nodes: tuple[str, ...] = ()
    blocked_because: str | None = None
    held_since_requeue: bool = False
    last_allocation: Allocation = field(default_factory=Allocation)
    suspended_at: datetime | None = None
    resumed_at: datetime | None = None
    counted_s: float = 0.0
    resized_at: datetime | None = None

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions that it may run in, or runs in."""
        return tuple(self.partition.split(","))

    def may_run_on(self, node: SlurmNode, named: Container[str] = ()) -> bool:
        """Whether Slurm would ever start the job there; `named` are the nodes that its owner asked for."""
        return (
            (not node.partitions or any(name in node.partitions for name in self.partitions))
            and self.requested_gpu_type in (None, node.gpu_type)
            and (not self.feature_sets or any(wanted <= node.features for wanted in self.feature_sets))
            and node.name not in self.excluded_nodes
            and (not named or node.name in named)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """One complete bulk read of jobs and nodes, taken at `read_at`. Never partial: a failed read raises."""

    read_at: datetime
    nodes: tuple[SlurmNode, ...]
    jobs: tuple[SlurmJob, ...]

    def job(self, job_id: str) -> SlurmJob | None:
        return next((job for job in self.jobs if job.job_id == job_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """What `SlurmClient.reshape` gives a pending job: `num_gpus` on exactly the named nodes, or, with no
    `nodes`, on any one node. CPUs and memory follow the GPUs (invariant 11). `time_limit_s` is the job's new
    time limit, None to leave it.
    """

    num_gpus: int
    nodes: tuple[str, ...] = ()
    gpus_per_node: int | None = None
    gpu_type: str | None = None
    cpus_per_gpu: int = 1
    time_limit_s: float | None = None

    @classmethod
    def of(cls, allocation: Allocation, *, cpus_per_gpu: int = 1, gpu_type: str | None = None) -> JobShape:
        """Return the shape that makes Slurm place exactly `allocation`."""
        counts = {gpus for _, gpus in allocation.gpus_by_node}
        return cls(
            num_gpus=allocation.num_gpus,
            nodes=allocation.nodes,
            gpus_per_node=counts.pop() if len(counts) == 1 else None,
            gpu_type=gpu_type,
            cpus_per_gpu=cpus_per_gpu,
        )

    @property
    def num_nodes(self) -> int:
        return len(self.nodes) or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """What a job tells the daemon through its Slurm Comment: who may report for it, and its bounds.

    `token_sha256` is the hex digest of the job's token, which was made for the user `user_id`: nobody else's
    job can bear it, whatever its Comment says. `allow_unconfirmed` is the owner's leave to requeue
    without a confirmed checkpoint after the confirmation timed out (invariant 1). With `slice_s` and
    `total_s`, in whole seconds and always both, a run that nears its time limit is saved and requeued with
    another slice, until all runs together have taken `total_s`.
    """

    token_sha256: str
    user_id: int
    min_gpus: int = 1
    max_gpus: int | None = None
    allow_unconfirmed: bool = False
    slice_s: int | None = None
    total_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountedRun:
    """One run of a job as Slurm's accounting database has it; several where it was resized meanwhile.

    `state` is None for a part of a run that ended with the loss of some of its GPUs.
    `elapsed_s` is what Slurm counts of it, in seconds, without suspensions. `num_gpus` is None where the
    database keeps no GPUs (`AccountingStorageTRES`); `nodes` is empty for a job that ended without a start.
    """

    slurm_job_id: str
    state: JobState | None
    started_at: datetime | None
    ended_at: datetime | None
    elapsed_s: float
    num_gpus: int | None
    nodes: tuple[str, ...]
