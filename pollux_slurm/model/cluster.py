"""Slurm's nodes and jobs as it shows them, and the shapes and terms that jobs get."""

from __future__ import annotations

import enum
from collections.abc import Container
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pollux_slurm.model.allocations import Allocation

# How long a move takes at most, with the minute to which Slurm rounds a time limit up.
MOVE_TAKES = timedelta(minutes=2)


class JobState(enum.Enum):
    """A job's state as scheduling needs it. The Slurm client maps Slurm's finer states to these."""

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
    """One node as Slurm shows it.

    - `gpu_type`: the one type of its GPUs, None where GRES has no type
    - `used_gpus`: the GPUs of all jobs, and all GPUs of a node that gives out parts of GPUs (shards, MPS)
    - `available`: False for a node that is down, drained, failing or reserved, on which no job may start, and
      for one with a `gres_problem`
    - `gres_problem`: why its GPUs cannot be used: of several types, or not to be read; None where they can
    - `draining`: True where an administrator wants its jobs to end or to leave
    - `responds`: False for a node that slurmctld has set DOWN; jobs may still run on it
    - `settling`: True for a moment after such a node is back (`pollux_slurm.daemon.observe.returned_nodes`)
    - `features`: the active ones
    - `hostname`: the machine's own name, empty where Slurm does not show it
    - `last_busy_at`: when its last job ended or it came back, whichever was later; None where Slurm does not
      show it, and possibly old for a node with jobs
    - `threads_per_core`: how many CPUs a core has
    - `reserved_from`: when the first reservation of it begins that is not over; None without one
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
    draining: bool = False
    responds: bool = True
    settling: bool = False
    hostname: str = ""
    last_busy_at: datetime | None = None
    gres_problem: str | None = None
    reserved_from: datetime | None = None
    threads_per_core: int = 1


PLACED_WITHIN_S = 20
"""How long a new job whose kind is known waits for the daemon, which sees it within `daemon.watch_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job as Slurm shows it. `job_id` is Slurm's number as a string (`123`; each array task has its own).

    Its state:

    - `held`: True for a PENDING job that waits for a release
    - `held_by_slurm`: True for one that Slurm holds because it could not start it
    - `held_since_requeue`: True for one that is held since its requeue and that no administrator has held
      since; an additional hold by its owner leaves no trace in Slurm
    - `restart_count`: how often it was requeued
    - `begins_at`: the begin time of a PENDING job, None without one
    - `priority`: Slurm's; larger starts first
    - `array_id`: the number of its job array, None for any other job
    - `deadline_at`: when it must have ended by its owner's --deadline, None without one
    - `expected_start_at`: when Slurm expects a PENDING job to start, None where it does not
    - `blocked_because`: why Slurm does not start a PENDING job whatever is free (a dependency, a partition
      that is down, ...)
    - `unschedulable_reason`: why the daemon may not move it (array master, heterogeneous, not a batch job,
      requeue forbidden, running without its GPUs), None where it may

    Its resources:

    - `requested_gpus`, `requested_gpu_type`: what it requests in all, and the type that it names, if any,
      which Slurm keeps in every later shape
    - `num_nodes`: how many nodes it requests, at least
    - `exclusive`: True where it requests whole nodes (`--exclusive`), which 26.05 does not show
    - `one_thread_per_core`: True where it uses one CPU of each core (`--hint=nomultithread`). Slurm counts
      what it has in CPUs, and what it requests in cores. Here, `cpus_per_gpu` and `num_cpus` are CPUs, of
      which a core has `threads_per_core`
    - `memory_by_node`: True where it requested memory by node, and neither by GPU nor by CPU
    - `least_memory_mb`: while it waits, how much it requests of a node or for a CPU, if only by a default;
      `memory_in_all_mb` is what Slurm counts in all
    - `allocation`: its GPUs, empty unless it is running or completing; `cpus_by_node` and `memory_mb_by_node`
      are what it uses of each node
    - `last_allocation`: the allocation in its last run, for a job that is over or completing

    Where it may run:

    - `partition`: several, with commas, while a job of `-p a,b` waits, and its own while it runs
    - `feature_sets`: a node must have all features of one of these, if there are any
    - `max_nodes`: the most nodes that it may have, None where its request leaves that to Slurm (from 24.11
      on, Slurm shows as many as it would use then)
    - `one_node`: what it requests of several nodes together can be kept on a single node only
    - `excluded_nodes`: nodes that it may not use
    - `required_nodes`: the nodes that its request names; its owner's (`--nodelist`) until it gets a shape on
      named nodes

    Its last run:

    - `started_at`, `ended_at`: for a COMPLETING job that is being requeued, Slurm shows the expected times of
      the next run
    - `counted_s`, and one of `suspended_at` and `resumed_at`: for a run that was suspended, how long it had
      run before, and since when it is suspended or resumed
    - `changes`: when its allocation changed while it ran, as far as Slurm shows it, with what it had from
      then on, oldest first; of two at one time, the last counts

    Of an anchor that `pollux_slurm.slurm.parsing.merged_wings` has merged with its wings:

    - `wings`: the jobs that have its GPUs, or wait for them, by number, with those that ended a short while
      ago. `restart_count` is that of its training's newest start
    - `anchor_waits`: True where its anchor waits in the queue itself: nothing could be given GPUs yet
    - `anchor_leaves_because`: why its anchor must leave the node where it runs; None where it may stay
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
    num_nodes: int = 1
    exclusive: bool = False
    memory_by_node: bool = False
    least_memory_mb: int = 0
    memory_in_all_mb: int = 0
    one_thread_per_core: bool = False
    threads_per_core: int = 1
    held_by_slurm: bool = False
    feature_sets: tuple[frozenset[str], ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    required_nodes: tuple[str, ...] = ()
    one_node: bool = False
    max_nodes: int | None = None
    blocked_because: str | None = None
    held_since_requeue: bool = False
    last_allocation: Allocation = field(default_factory=Allocation)
    suspended_at: datetime | None = None
    resumed_at: datetime | None = None
    counted_s: float = 0.0
    changes: tuple[tuple[datetime, Allocation], ...] = ()
    wings: tuple[SlurmJob, ...] = ()
    anchor_waits: bool = False
    anchor_leaves_because: str | None = None
    expected_start_at: datetime | None = None
    deadline_at: datetime | None = None
    array_id: str | None = None

    @property
    def waits_for_placing(self) -> bool:
        """Whether it was submitted to begin a moment later, so that the daemon may place it before."""
        if self.restart_count or self.begins_at is None or self.submitted_at is None:
            return False
        return 0 < (self.begins_at - self.submitted_at).total_seconds() <= PLACED_WITHIN_S

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions that it may run in, or runs in."""
        return tuple(self.partition.split(","))

    def time_left_s(self, now: datetime) -> float | None:
        """Return what is left of the time limit since the job's start; None without a limit or a start."""
        if self.time_limit_s is None or self.started_at is None:
            return None
        return max(self.time_limit_s - (now - self.started_at).total_seconds(), 0.0)

    def may_run_on(
        self,
        node: SlurmNode,
        named: Container[str] = (),
        *,
        at: datetime | None = None,
        takes: timedelta = MOVE_TAKES,
    ) -> bool:
        """Return whether Slurm can start the job there; `named` are the nodes that its owner requested.

        On a node with a reservation ahead, it can where the job ends before, if a move begins `at` that time
        and `takes` so long. Without `at`, reservations do not count.
        """
        return (
            (not node.partitions or any(name in node.partitions for name in self.partitions))
            and self.requested_gpu_type in (None, node.gpu_type)
            and (not self.feature_sets or any(wanted <= node.features for wanted in self.feature_sets))
            and node.name not in self.excluded_nodes
            and (not named or node.name in named)
            and (at is None or node.reserved_from is None or self._ends_by(node.reserved_from - takes, at))
        )

    def _ends_by(self, end: datetime, at: datetime) -> bool:
        if self.time_limit_s is None:
            return False
        left = timedelta(seconds=self.time_limit_s)
        # A new wing has the time limit of the first.
        if self.started_at is not None and not self.wings:
            left -= at - self.started_at
        return at + max(left, timedelta()) <= end


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
    """The request that `SlurmClient.reshape` gives a pending job: `num_gpus` on exactly the named nodes.

    Without `nodes`, it is for any one node. CPUs and memory follow the GPUs. `time_limit_s` is the job's new
    time limit, None to keep its own.
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
    """What a job's Slurm Comment contains: the hash of its token, and its owner's terms for the daemon.

    - `token_sha256`: the hex digest of the job's token, which was made for the user `user_id`; it is not
      valid for a job of any other user
    - `allow_unconfirmed`: the daemon may requeue the job without a confirmed checkpoint after the
      confirmation timed out
    - `slice_s`, `total_s`: both or none, in whole seconds; a run near its time limit is checkpointed and
      requeued with another slice, until all runs together have taken `total_s`
    - `in_place`: the job is an anchor; its training runs in other jobs, its wings (`SlurmJob.wings`)
    - `min_run_s`: for so long after a start the job neither grows nor moves to other nodes; infinite: never.
      None is the site's default
    - `kind`: earlier jobs of the same kind teach this one (`agent.kind`); None for no kind
    - `finish_by`: when its owner wants it finished, to the second; None for no wish
    """

    token_sha256: str
    user_id: int
    min_gpus: int = 1
    max_gpus: int | None = None
    allow_unconfirmed: bool = False
    slice_s: int | None = None
    total_s: int | None = None
    in_place: bool = False
    min_run_s: float | None = None
    kind: str | None = None
    finish_by: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountedRun:
    """One run of a job in Slurm's accounting database, or one part of a run that was resized.

    `state` is None for a part that ended because the job lost some of its GPUs. `elapsed_s` is without
    suspensions. `num_gpus` is None where the database keeps no GPUs (`AccountingStorageTRES`). `nodes` is
    empty for a job that ended without a start.
    """

    slurm_job_id: str
    state: JobState | None
    started_at: datetime | None
    ended_at: datetime | None
    elapsed_s: float
    num_gpus: int | None
    nodes: tuple[str, ...]
