"""The scheduling problem and its answer, and the steps in which an answer is enacted."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from dataclasses import dataclass

from pollux_slurm.model.allocations import Allocation, Configuration
from pollux_slurm.model.goodput import BatchChoice, GoodputModel


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

    `model` is None before a first report, and where what it reports does not count: `model_doubt` says why.
    `current` is the allocation it holds, empty while pending.
    `pinned` keeps it exactly there, and `pinned_because` says why to whom it may concern.
    `age_s` T_j, `num_restarts` R_j and `restart_delay_s` δ enter the restart penalty.
    `partition_nodes` are the nodes it may use; None means all.

    `model` holds on every GPU type that `models` has no entry for; without it, such a type's is projected
    from the first entry of `models`, in proportion to single-GPU throughput (`Problem.gpu_speeds`).
    `weight` is the job's in the objective's mean. `account`, `user` and `qos` are what `GpuLimit`s count by.
    `rigid` keeps a job in one shape: exactly `min_gpus` GPUs, moved but never resized.

    What is declared of its length: `progress`, the useful examples so far (goodput integrated over time),
    and `epochs_done` of `epochs_declared`. `declaration_doubt` says why a declaration was not passed on.
    `waiting_s` is how long it has been without GPUs. `prediction_error` is how far its throughput was from
    what its model said, on average of late, as a part of that.
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
    current: Allocation = dataclasses.field(default_factory=Allocation)
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
    model_doubt: str | None = None
    waiting_s: float = 0.0
    qos: str = ""
    prediction_error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a decision maximises: a generalized mean over jobs, with exponent p (Pollux eq. 14).

    `name` chooses what is averaged: "generalized-mean", "osdi21", "price-rank" or "attained-work"; the last
    three bring their own exponent, and "osdi21" its floor and delay as well. `penalty` is the form of the
    price of a restart: "paper" (the part of its life that a job did not spend restarting) or "amortised"
    (the part of the next `horizon_s` that it will not). A SPEEDUP of 1 is what `fair_share_gpus` GPUs give;
    None: ⌈G/J⌉ of G GPUs and J jobs, as "osdi21" always has it. `between` says who has equal shares: "users",
    "accounts" or "jobs" (`policy/participation/user_shares.py`).
    """

    name: str = "generalized-mean"
    exponent: float = -1.0
    floor: float = 1e-3
    penalty: str = "paper"
    horizon_s: float = 600.0
    fair_share_gpus: int | None = None
    between: str = "jobs"


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
    budget of reallocations), "waiting" (GPUs are kept for a job that has waited for too long), "share" (other
    jobs of its user, or account, have that one's share), "young" (too young, or too near its end, to be
    moved), "rigid", "pinned", or "nothing" (no larger size that it may have is predicted to be faster).
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


class ReallocationCause(enum.Enum):
    """Why a reallocation was planned."""

    DECISION = "decision"
    """A round decided so."""
    PAUSE = "pause"
    """Somebody ordered it with `pollux pause`."""
    DRAIN = "drain"
    """Somebody ordered it with `pollux drain`: the job stays held."""
    RESUME = "resume"
    """Somebody ordered it with `pollux resume`."""
    TIME_LIMIT = "time_limit"
    """The job is near its time limit, which its owner lets be renewed."""
    AFTER_FAILURE = "after_failure"
    """The job failed before its first step in a new shape: it goes back to the one that it last ran in."""
    FAILED_START = "failed_start"
    """Slurm ended a start before the job trained: it is started again."""
    HELD_BY_SLURM = "held_by_slurm"
    """Slurm holds the job after failed launches: it is released."""
    LATE_COMMAND = "late_command"
    """A daemon held the job after it had lost its lease: the job is released."""

    @property
    def is_order(self) -> bool:
        """Whether somebody ordered it."""
        return self in (ReallocationCause.PAUSE, ReallocationCause.DRAIN, ReallocationCause.RESUME)
