"""The frozen types that cross layers. No I/O, no formulas beyond one-line properties.

Read it in four parts: allocations; one job's goodput model; what Slurm shows; the scheduling problem.
What only the store and its users exchange (reports, records) stands in `pollux_slurm.store.contract`.

Symbols are the paper's (Pollux, OSDI 2021, section 3): K replicas on N nodes, atomic batch size m,
accumulation steps s, global batch size M, initial batch size M0, gradient noise scale φ.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

# --------------------------------------------------------------------------------------------- allocations


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The size of an allocation without its place: `num_gpus` GPUs (K) on `num_nodes` nodes (N)."""

    num_nodes: int
    num_gpus: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """GPUs per node for one job: (node name, GPUs) pairs sorted by name, each with at least one GPU."""

    gpus_by_node: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, gpus_by_node: Mapping[str, int]) -> Allocation:
        """Return the canonical allocation: sorted, nodes without GPUs dropped."""
        if any(gpus < 0 for gpus in gpus_by_node.values()):
            raise ValueError(f"negative GPU count in {dict(gpus_by_node)}")
        return cls(tuple(sorted((node, int(gpus)) for node, gpus in gpus_by_node.items() if gpus > 0)))

    def __bool__(self) -> bool:
        return bool(self.gpus_by_node)

    def __str__(self) -> str:
        return "+".join(f"{node}:{gpus}" for node, gpus in self.gpus_by_node) or "none"

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node for node, _ in self.gpus_by_node)

    @property
    def num_nodes(self) -> int:
        return len(self.gpus_by_node)

    @property
    def num_gpus(self) -> int:
        return sum(gpus for _, gpus in self.gpus_by_node)

    @property
    def configuration(self) -> Configuration:
        return Configuration(num_nodes=self.num_nodes, num_gpus=self.num_gpus)

    def as_dict(self) -> dict[str, int]:
        return dict(self.gpus_by_node)


# --------------------------------------------------------------------------------- one job's goodput model


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputParameters:
    """θ, the seven fitted parameters of the throughput model (Pollux eq. 8-11), in seconds.

    T_grad(m) = alpha_g + beta_g·m;  T_sync = 0 (K = 1), alpha_l + beta_l·max(K−2, 0) (one node),
    alpha_n + beta_n·max(K−2, 0) (several nodes);  T_iter = s·T_grad + (T_grad^γ + T_sync^γ)^(1/γ).
    """

    alpha_g: float
    beta_g: float
    alpha_n: float
    beta_n: float
    alpha_l: float
    beta_l: float
    gamma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientStatistics:
    """Smoothed gradient statistics at the initial batch size M0.

    `sqr` is |G|², the squared norm of the true gradient; `var` is tr(Σ) of the gradient at batch M0.
    The noise scale is φ = M0·var/sqr (MATH: statistical efficiency). `noise_low` and `noise_high` are the
    ends of its 99 % confidence interval, in examples: None and None where nobody estimated one (exact data),
    and only `noise_high` None where nothing is excluded upwards.
    """

    sqr: float
    var: float
    noise_low: float | None = None
    noise_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What the user allows of batch sizes, in examples.

    Without `max_batch_size` the global batch size stays exactly `initial_batch_size` at any number of
    replicas. `min_atomic` and `max_atomic` bound m; `accumulation` allows s > 0.
    """

    initial_batch_size: int
    max_batch_size: int | None = None
    min_atomic: int = 1
    max_atomic: int | None = None
    accumulation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChoice:
    """A global batch M split over K replicas and s + 1 passes of m = ⌈M / (K·(s+1))⌉ examples each."""

    global_batch_size: int
    atomic_batch_size: int
    accumulation_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputModel:
    """All that is known of one job's goodput. `throughput` is None until a first step was measured."""

    limits: BatchLimits
    statistics: GradientStatistics | None = None
    throughput: ThroughputParameters | None = None
    max_gpus_seen: int = 0
    max_nodes_seen: int = 0


# ------------------------------------------------------------------------------------------ what Slurm shows


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

    `used_gpus` counts every job's GPUs; `available` is False for a node that is down, drained, failing or
    reserved, on which nothing new may start.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job as Slurm sees it. `job_id` is Slurm's number as text (`123`; each array task has its own).

    `held` is True for a PENDING job that waits for a release. `restart_count` grows with each requeue.
    `requested_gpus` is what it asks for in all, `requested_gpu_type` the type that it names, if any, which
    Slurm keeps in every later shape; `allocation` what it holds now (empty unless running or
    completing). `cpus_by_node` and `memory_mb_by_node` are what it holds of each node.
    `unschedulable_reason` says why the daemon may not move it (array master, heterogeneous, not a batch
    job, requeue forbidden), None when it may. `begins_at` is when a PENDING job may start at the earliest,
    None for any other and for one that Slurm set no such time. `priority` is Slurm's, larger first.
    `memory_by_node` tells that it asked for memory by node, and neither by GPU nor by CPU.
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

    `token_sha256` is the hex digest of the job's token. `allow_unconfirmed` is the owner's leave to requeue
    without a confirmed checkpoint after the confirmation timed out (invariant 1). With `slice_s` and
    `total_s`, in whole seconds and always both, a run that nears its time limit is saved and requeued with
    another slice, until all runs together have taken `total_s`.
    """

    token_sha256: str
    min_gpus: int = 1
    max_gpus: int | None = None
    allow_unconfirmed: bool = False
    slice_s: int | None = None
    total_s: int | None = None


# -------------------------------------------------------------------------------- the scheduling problem


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """What managed jobs may use of one node: its totals less what unmanaged jobs hold.

    A node that takes no new jobs (drained) is listed with `accepts_new=False`: jobs on it may stay.
    """

    name: str
    num_gpus: int
    num_cpus: int
    memory_mb: int
    gpu_type: str | None = None
    accepts_new: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemJob:
    """One job of a scheduling problem.

    `model` is None before a first report. `current` is the allocation it holds, empty while pending.
    `pinned` keeps it exactly there, and `pinned_because` says why to whom it may concern.
    `age_s` T_j, `num_restarts` R_j and `restart_delay_s` δ enter the restart penalty.
    `partition_nodes` are the nodes it may use; None means all.

    `model` holds on every GPU type that `models` has no entry for; without it, such a type's is projected
    from the first entry of `models`, in proportion to single-GPU throughput (`Problem.gpu_speeds`).
    `weight` is the job's in the objective's mean. `account`, `user` and `qos` are what `GpuLimit`s count by.
    `rigid` keeps a job in one shape: exactly `min_gpus` GPUs, moved but never resized.

    What is declared of its length: `progress`, the useful examples so far (goodput integrated over time),
    and `epochs_done` of `epochs_declared`. `declaration_doubt` says why a declaration was not passed on.
    `waiting_s` is how long it has been without GPUs.
    """

    job_id: str
    model: GoodputModel | None = None
    models: tuple[tuple[str, GoodputModel], ...] = ()
    min_gpus: int = 1
    max_gpus: int | None = None
    cpus_per_gpu: int = 1
    memory_per_gpu_mb: int = 0
    age_s: float = 0.0
    num_restarts: int = 0
    restart_delay_s: float = 30.0
    current: Allocation = Allocation()
    pinned: bool = False
    pinned_because: str | None = None
    partition_nodes: frozenset[str] | None = None
    weight: float = 1.0
    account: str = ""
    user: str = ""
    rigid: bool = False
    progress: float | None = None
    epochs_done: float | None = None
    epochs_declared: float | None = None
    declaration_doubt: str | None = None
    waiting_s: float = 0.0
    qos: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a decision maximises: a generalized mean over jobs, with exponent p (Pollux eq. 14).

    `name` chooses what is averaged: "generalized-mean", "osdi21", "price-rank" or "attained-work"; the last
    three bring their own exponent, and "osdi21" its floor and delay as well. `penalty` is the form of the
    price of a restart: "paper" (the part of its life that a job did not spend restarting) or "amortised"
    (the part of the next `horizon_s` that it will not). A SPEEDUP of 1 is what `fair_share_gpus` GPUs give;
    None: ⌈G/J⌉ of G GPUs and J jobs, as "osdi21" always has it.
    """

    name: str = "generalized-mean"
    exponent: float = -1.0
    floor: float = 1e-3
    penalty: str = "paper"
    horizon_s: float = 600.0
    fair_share_gpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimit:
    """At most `max_gpus` GPUs for all jobs of one `kind` ("account", "user" or "qos") `name` together.

    With `job_ids` it counts those jobs instead, as of the accounts below one, and kind and name only say what
    it is.
    """

    kind: str
    name: str
    max_gpus: int
    job_ids: tuple[str, ...] | None = None

    def members(self, jobs: Iterable[ProblemJob]) -> list[bool]:
        """Return for each of `jobs` whether it counts."""
        if self.job_ids is None:
            return [getattr(job, self.kind) == self.name for job in jobs]
        named = frozenset(self.job_ids)
        return [job.job_id in named for job in jobs]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingRules:
    """When running jobs are left alone, whatever the objective says.

    `hysteresis` is the part of its speedup that a running job is counted as losing by any change.
    `max_reallocations` bounds the running jobs that change in one round. A running job younger than
    `min_age_s`, or that by its declaration ends within `min_remaining_s`, stays as it is. With `pauses`, a
    running job may be left without GPUs for a while, where the objective finds others worth more.
    """

    hysteresis: float = 0.0
    max_reallocations: int | None = None
    min_age_s: float = 0.0
    min_remaining_s: float = 0.0
    pauses: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Everything one decision is made from. Same problem, same answer (invariant 8).

    `gpu_speeds` gives GPU types' single-GPU throughput relative to each other, for jobs that have no model of
    a type; a type that is not named there counts by the jobs that were measured on both, else as equal.
    `uneven` lets a new allocation have different numbers of GPUs on its nodes; None leaves it to the
    objective: only "osdi21" does. A job that has been without GPUs for `max_wait_s` or longer is served
    before all others that wait; None: no bound.
    """

    nodes: tuple[NodeCapacity, ...]
    jobs: tuple[ProblemJob, ...]
    objective: Objective = Objective()
    seed: int = 0
    limits: tuple[GpuLimit, ...] = ()
    moving: MovingRules = MovingRules()
    gpu_speeds: tuple[tuple[str, float], ...] = ()
    uneven: bool | None = None
    max_wait_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDecision:
    """What one job gets and why.

    `goodput` in examples/s is None before a model exists. `penalty` is f_j, 1 when nothing changes.
    `runner_up` is the next best configuration that it could have on the nodes that it may use, others aside.
    `bound_by` names what kept it from more: "capacity", "max_gpus", "exploration", "penalty", "placement",
    "cpus", "memory", "partition" (the nodes that it may use now have no more), "limit", "moves" (the round's
    budget of reallocations), "waiting" (GPUs are kept for a job that has waited for too long), "young" (too
    young, or too near its end, to be moved), "rigid", "pinned", or "nothing" (more GPUs would not help).
    `runner_up_cost` is what other jobs would have paid for it, at the shadow prices of GPUs and in the
    objective's sum, on top of `cost`, what they pay for the allocation itself.
    `gpu_type` and `runner_up_gpu_type` are the types of GPU of the two (None: of several types, or none).
    `declared_gain` is the factor by which what the job declares of its length has changed its weight, None
    where it counts for nothing; `declaration_doubt` says why so. `pinned_because` is the problem's.
    """

    job_id: str
    allocation: Allocation
    speedup: float
    goodput: float | None
    penalty: float
    batch: BatchChoice | None
    bound_by: str
    runner_up: Configuration | None
    runner_up_speedup: float | None
    runner_up_cost: float | None = None
    cost: float | None = None
    gpu_type: str | None = None
    runner_up_gpu_type: str | None = None
    declared_gain: float | None = None
    declaration_doubt: str | None = None
    pinned_because: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to a `Problem`. `excluded` tells, per job left out, why; those jobs keep what they have.

    No answer that serves as many jobs has a fitness above `upper_bound`, and `gap` is
    (upper_bound − fitness)/upper_bound; both are None where no bound was computed. `gpu_prices` is what one
    more GPU of each type would add to the objective's sum, in the partition where it is dearest. `times_s`
    tells where the time went, by phase; two equal decisions may differ in it. `timed_out` is True when the
    watchdog cut the search short.
    """

    jobs: tuple[JobDecision, ...]
    fitness: float
    solver: str
    excluded: tuple[tuple[str, str], ...] = ()
    upper_bound: float | None = None
    gap: float | None = None
    gpu_prices: tuple[tuple[str, float], ...] = ()
    times_s: tuple[tuple[str, float], ...] = dataclasses.field(default=(), compare=False)
    timed_out: bool = False

    def allocation(self, job_id: str) -> Allocation:
        return next((job.allocation for job in self.jobs if job.job_id == job_id), Allocation())


class ReallocationStep(enum.Enum):
    """The steps of a reallocation, in order, and its three ends. Each is journaled before its side effect."""

    PLANNED = "planned"
    CHECKPOINT_REQUESTED = "checkpoint_requested"
    CHECKPOINTED = "checkpointed"
    REQUEUED = "requeued"
    RESHAPED = "reshaped"
    RELEASED = "released"
    RUNNING = "running"
    CONFIRMED = "confirmed"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"

    @property
    def is_end(self) -> bool:
        return self in (ReallocationStep.CONFIRMED, ReallocationStep.ROLLED_BACK, ReallocationStep.FAILED)
