"""The scheduling problem and its decision, and the steps and causes of reallocations."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from dataclasses import dataclass

from pollux_slurm.model.allocations import Allocation, Configuration
from pollux_slurm.model.goodput import BatchChoice, GoodputModel, TrainingCourse


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """Hold the part of one node that adaptive jobs may use: its totals less what unmanaged jobs have.

    Args:
        name: The node's name in Slurm.
        num_gpus: GPUs.
        num_cpus: CPUs.
        memory_mb: Memory, in MB.
        gpu_type: The type of its GPUs; None: Slurm names none.
        accepts_new: False for a node that takes no new jobs (drained); jobs on it may stay.
        several_wings: One job may have several wings there.

    Examples:
        >>> node = NodeCapacity(name="n0", num_gpus=4, num_cpus=32, memory_mb=256_000, gpu_type="a100")
    """

    name: str
    num_gpus: int
    num_cpus: int
    memory_mb: int
    gpu_type: str | None = None
    accepts_new: bool = True
    several_wings: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedConfiguration:
    """From `least_gpus` to `most_gpus` GPUs on `num_nodes` nodes; None: any number from there on."""

    num_nodes: int
    least_gpus: int
    most_gpus: int | None = None


class PromiseState(enum.Enum):
    """What became of an owner's request that a job be finished by a moment."""

    UNKNOWN = "unknown"
    """The job's length or speed is not known yet."""
    REFUSED = "refused"
    """It does not fit now; each round asks again."""
    ACCEPTED = "accepted"
    """The job gets at least the GPUs that keep it."""
    ENDED = "ended"
    """It was accepted, and does not bind any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A round's answer to such a request. Times in seconds from the round on.

    - `least_gpus`: what keeps an accepted one from now on; 0 while it can wait
    - `finish_s`: when the job is finished with these, with a probability of 90 %; for a refused one, when it
      could be at the earliest. None where that is not known
    - `time_left_s`: what its time limit leaves it, where that is less than it needs
    - `reason`: what is missing, or why it ended
    """

    job_id: str
    state: PromiseState
    least_gpus: int = 0
    finish_s: float | None = None
    time_left_s: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemJob:
    """Hold one job of a scheduling problem.

    - `job_id`: its name, unique in the problem

    Its model:

    - `model`: None before the first report, and where it does not count; `model_doubt` is the reason then
    - `models`: models by GPU type; for all other types, `model` counts, and without it the first of `models`,
      scaled by single-GPU throughput (`Problem.gpu_speeds`)
    - `kind_note`: what of its model other jobs of its kind have measured, or why they do not count
    - `prediction_error`: recent mean of |throughput/predicted − 1|, from 0 to 1

    What it has and may have:

    - `current`: its allocation, empty while it waits
    - `pinned`: it keeps exactly this allocation; `pinned_because` is the reason
    - `min_gpus`, `max_gpus`: its bounds; with `rigid`, it has exactly `min_gpus`: it may move, not resize
    - `cpus_per_gpu`, `memory_per_gpu_mb`: what each of its GPUs takes of its node
    - `held_off`: it neither grows nor moves to other nodes in this round; others may take GPUs of it
    - `one_node`: it is given GPUs of a single node only
    - `partition_nodes`: the nodes that it may use; None: all
    - `refused`: configurations that it is not given in this round, as Slurm refused them or would

    Its time and rank:

    - `age_s` T_j, `num_restarts` R_j, `restart_delay_s` δ: the terms of the restart penalty; R_j counts moves
      by requeue only
    - `wings`: the allocations of the wings of a job that moves in place, empty for any other;
      `in_place_delay_s` is δ of a move that `model.wings` can make in place, None where the job cannot now
    - `waiting_s`: how long it has been without GPUs
    - `weight`: its weight in the objective's mean
    - `account`, `user`, `qos`: what `GpuLimit`s and shares count by
    - `share`: the share of its user, or account, relative to an equal one; `share_note` is the reason
    - `progress`: useful examples so far (goodput integrated over time)
    - `epochs_done`, `epochs_declared`: its own declaration of its length; `declaration_doubt` is the reason
      why a declaration does not count
    - `expected_progress`: the progress at which it will end by the lengths of its kind, None where unknown:
      their median; `expected_low` and `expected_high` are the least and the greatest
    - `course`: that of a completed training of its kind

    Its promise:

    - `finish_by_s`: the seconds until its owner wants it finished, below 0 afterwards; None for no wish
    - `time_left_s`: for how long its time limit, or total time, still lets it have GPUs; None for no limit
    - `promise`: the answer of earlier rounds, None before the first
    - `promised_gpus`: the fewest GPUs that keep an accepted promise now

    Examples:
        >>> job = ProblemJob(job_id="7", min_gpus=1, max_gpus=8, current=Allocation.of({"n0": 2}))
        >>> job.current.num_gpus
        2
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
    wings: tuple[Allocation, ...] = ()
    in_place_delay_s: float | None = None
    current: Allocation = dataclasses.field(default_factory=Allocation)
    pinned: bool = False
    pinned_because: str | None = None
    partition_nodes: frozenset[str] | None = None
    weight: float = 1.0
    account: str = ""
    user: str = ""
    share: float = 1.0
    share_note: str | None = None
    rigid: bool = False
    progress: float | None = None
    epochs_done: float | None = None
    epochs_declared: float | None = None
    declaration_doubt: str | None = None
    expected_progress: float | None = None
    expected_low: float | None = None
    expected_high: float | None = None
    model_doubt: str | None = None
    kind_note: str | None = None
    waiting_s: float = 0.0
    qos: str = ""
    prediction_error: float = 0.0
    held_off: bool = False
    one_node: bool = False
    refused: tuple[RefusedConfiguration, ...] = ()
    course: TrainingCourse | None = None
    finish_by_s: float | None = None
    time_left_s: float | None = None
    promise: PromiseState | None = None
    promised_gpus: int = 0

    def takes(self, num_gpus: int) -> tuple[int, int, int]:
        """Return the GPUs, CPUs and MB of memory that a part of its allocation takes of a node.

        Args:
            num_gpus: The GPUs of that part.

        Examples:
            >>> ProblemJob(job_id="1", cpus_per_gpu=4, memory_per_gpu_mb=1000).takes(2)
            (2, 8, 2000)
        """
        return num_gpus, num_gpus * self.cpus_per_gpu, num_gpus * self.memory_per_gpu_mb


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a decision maximises: a generalized mean over jobs, with exponent p (Pollux eq. 14).

    - `name`: "generalized-mean", "osdi21", "price-rank" or "attained-work"; the last three have their own
      exponent, and "osdi21" its own floor and restart delay
    - `penalty`: the form of the restart penalty, "paper" (the part of its life that a job does not lose
      by the move) or "amortised" (the part of the next `horizon_s` that it will not)
    - `fair_share_gpus`: the GPUs on which SPEEDUP is 1; None, and always with "osdi21": ⌈G/J⌉ for G GPUs and
      J jobs
    - `between`: whose shares are equal, "users", "accounts" or "jobs"
      (`policy/participation/user_shares.py`)
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
    """At most `max_gpus` GPUs for all jobs of one account, user or QOS (`kind`) together, called `name`.

    With `job_ids`, it counts these jobs instead (those of an account and the accounts below it, for example),
    and `kind` and `name` only describe it.
    """

    kind: str
    name: str
    max_gpus: int
    job_ids: tuple[str, ...] | None = None

    def members(self, jobs: Iterable[ProblemJob]) -> list[bool]:
        """Return for each of `jobs` whether the limit counts it."""
        if self.job_ids is None:
            return [getattr(job, self.kind) == self.name for job in jobs]
        named = frozenset(self.job_ids)
        return [job.job_id in named for job in jobs]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingRules:
    """When running jobs keep their allocation, under every objective.

    - `hysteresis`: the part of its speedup that a change costs a running job, under `generalized-mean` but
      for its first restart and where it grows in place
    - `max_reallocations`: how many running jobs may change in one round
    - `min_age_s`: a running job younger than this does not change
    - `min_remaining_s`: nor does one that ends sooner than this by its declaration
    - `pauses`: a running job may lose all GPUs for a while, where others are worth more to the objective
    """

    hysteresis: float = 0.0
    max_reallocations: int | None = None
    min_age_s: float = 0.0
    min_remaining_s: float = 0.0
    pauses: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Hold everything that one decision depends on: the same problem has the same answer.

    Args:
        nodes: What adaptive jobs may use.
        jobs: The jobs to decide about.
        objective: What the decision maximises.
        seed: That of the random generator of a solver that has one.
        limits: How many GPUs several jobs may have together.
        moving: When running jobs keep their allocation.
        gpu_speeds: Single-GPU throughput of GPU types relative to each other, for jobs without a model of a
            type; a type without one counts by the jobs that were measured on both, else as equal.
        uneven: Whether a new allocation may have different numbers of GPUs on its nodes; None: only under
            "osdi21".
        max_wait_s: A job without GPUs for longer starves: it is served before all others that wait; None: no
            bound.

    Examples:
        >>> problem = Problem(nodes=nodes, jobs=jobs)
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
    """One job's allocation in a decision, and the reasons for it.

    - `goodput`: in examples/s, None without a model
    - `penalty`: f_j, 1 where the allocation does not change
    - `bound_by`: what keeps the job from more GPUs, see below
    - `runner_up`: the next best configuration on the nodes that it may use, if no other job used them
    - `cost`: the price of its allocation to other jobs, at the shadow prices of GPUs and in the objective's
      sum; `runner_up_cost` is how much more the runner-up would cost
    - `gpu_type`, `runner_up_gpu_type`: the GPU types of the two, None for several and for no GPUs
    - `declared_gain`: the factor by which the job's declaration changes its weight, None where it does not
      count; `declaration_doubt` is the reason
    - `pinned_because`: that of the problem
    - `way`, `move_delay_s`: how a running job goes to another allocation, and the delay that the decision
      expects of it; None where the allocation does not change, or the job waits before or after

    `bound_by` is "capacity", "max_gpus", "exploration", "penalty", "placement", "cpus", "memory",
    "partition" (the nodes that it may use now have no more), "limit", "moves" (the round's budget of
    reallocations), "waiting" (GPUs are kept for a job that has waited for too long), "share" (other jobs of
    its user, or account, take up the share), "young" (too young, or too near its end, to be moved), "rigid",
    "not_tried" (Slurm recently refused more, or the job would lose its place), "pinned", or "nothing" (no
    larger size that it may have is predicted to be faster).
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
    way: ReallocationWay | None = None
    move_delay_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to a `Problem`.

    - `excluded`: why jobs are excluded, by job id; these jobs keep their allocation
    - `upper_bound`: no answer that serves as many jobs has a fitness above it; `gap` is
      (upper_bound − fitness)/upper_bound; both are None where no bound was computed
    - `gpu_prices`: what one more GPU of each type would add to the objective's sum, in the partition where
      that is most
    - `times_s`: seconds by phase; equal decisions may differ in it
    - `timed_out`: whether the watchdog ended the search
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
    """The steps of a reallocation, in order, and its three ends. Each is journaled before its command.

    In place it goes from `PLANNED` to `REGROUP_REQUESTED`.
    """

    PLANNED = "planned"
    CHECKPOINT_REQUESTED = "checkpoint_requested"
    CHECKPOINTED = "checkpointed"
    REQUEUED = "requeued"
    RESHAPED = "reshaped"
    RELEASED = "released"
    RUNNING = "running"
    REGROUP_REQUESTED = "regroup_requested"
    REGROUPED = "regrouped"
    CONFIRMED = "confirmed"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"

    @property
    def is_end(self) -> bool:
        return self in (ReallocationStep.CONFIRMED, ReallocationStep.ROLLED_BACK, ReallocationStep.FAILED)

    @property
    def text(self) -> str:
        """What a job does that is at this step of a move, for people."""
        return _STEP_TEXTS.get(self, self.value)


_STEP_TEXTS = {
    ReallocationStep.PLANNED: "waits until its GPUs are free",
    ReallocationStep.CHECKPOINT_REQUESTED: "its checkpoint is requested",
    ReallocationStep.CHECKPOINTED: "its checkpoint is written",
    ReallocationStep.REQUEUED: "is stopped and back in the queue",
    ReallocationStep.RESHAPED: "has its new allocation in the queue",
    ReallocationStep.RELEASED: "waits for Slurm to start it",
    ReallocationStep.RUNNING: "is started, and has reported no step yet",
    ReallocationStep.REGROUP_REQUESTED: "trains on while its new processes start",
    ReallocationStep.REGROUPED: "trains with its new processes",
}


class ReallocationWay(enum.Enum):
    """How a reallocation moves a job."""

    REQUEUE = "requeue"
    """From a checkpoint, by a requeue."""
    IN_PLACE = "in_place"
    """By a regroup: wings join and leave while the job trains."""


class SlurmAnswer(enum.Enum):
    """What Slurm answered to an allocation that it did not start."""

    NEVER = "never"
    """Not as things are: its rules exclude it, whatever is free."""
    NOT_NOW = "not_now"
    """Not with what is free, as far as Slurm sees it."""


class ReallocationCause(enum.Enum):
    """Why a reallocation was planned."""

    DECISION = "decision"
    """A round's decision."""
    PAUSE = "pause"
    """`pollux pause`."""
    DRAIN = "drain"
    """`pollux drain`: the job stays held, as by `scontrol hold`."""
    RESUME = "resume"
    """`pollux resume`."""
    TIME_LIMIT = "time_limit"
    """The job is near its time limit, and its owner allows another slice."""
    AFTER_FAILURE = "after_failure"
    """The job failed before its first step in a new allocation: it goes back to the last one it ran in."""
    FAILED_START = "failed_start"
    """A start failed before the job trained: it is started again."""
    HELD_BY_SLURM = "held_by_slurm"
    """Slurm holds the job after failed starts: it is released."""
    STRAY_WINGS = "stray_wings"
    """Jobs claim to be wings of it, and none of its processes is in them: they are cancelled."""
    LATE_COMMAND = "late_command"
    """A late command held the job: it is released."""

    @property
    def is_order(self) -> bool:
        """Return whether a person ordered it with a command."""
        return self in (ReallocationCause.PAUSE, ReallocationCause.DRAIN, ReallocationCause.RESUME)
