"""Frozen types that jobs, the daemon and people exchange through the store.

`interface.py` re-exports them beside the methods that use them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pollux_slurm.model import (
    Allocation,
    BatchChoice,
    Configuration,
    GoodputModel,
    GradientStatistics,
    JobDecision,
    JobState,
    JobTerms,
    JobWarning,
    PromiseState,
    ReallocationCause,
    ReallocationStep,
    ReallocationWay,
    SlurmAnswer,
)
from pollux_slurm.store.contract.membership import GenerationRecord

# ------------------------------------------------------------------------------------------ from the agent


class RunPhase(enum.Enum):
    """Phase of a run. `WAITING`: the checkpoint is confirmed, and all ranks wait to be stopped."""

    STARTING = "starting"
    TRAINING = "training"
    WAITING = "waiting"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfirmation:
    """A complete checkpoint on disk.

    `request_id` is the reallocation that requested it; None after SIGTERM. `blocked_s` is how long training
    was blocked by it. The store limits it to the time since the request, or since the run's first report.
    """

    request_id: int | None
    blocked_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One message of a job's agent (rank 0).

    `run_number` is the run's number in its checkpoint directory (0, 1, ...); `restart_count` is Slurm's.
    `sequence` grows by one per report within a run. `gpus_per_node` is what the run uses, in rank order.
    `first_step_s` is the time from process start to the end of the first optimizer step, None until then;
    `restore_s` is the part spent reading the checkpoint. `throughput` (examples/s), `step_time_s` and
    `efficiency` are measured over the last reporting interval; `predicted_throughput` is what the current
    model predicts for this configuration and batch size. `num_examples` is how many the run has trained on
    so far, None where the agent does not count. `progress` is in units of M0. `epoch` is the
    current one; `total_epochs` is what the loop declared with `remaining_epochs_until`, None without one.
    `warnings` are all that the run has raised.
    """

    run_number: int
    restart_count: int
    sequence: int
    phase: RunPhase
    gpus_per_node: tuple[int, ...]
    model: GoodputModel | None = None
    batch: BatchChoice | None = None
    throughput: float | None = None
    predicted_throughput: float | None = None
    step_time_s: float | None = None
    efficiency: float | None = None
    num_steps: int = 0
    num_examples: int | None = None
    progress: float = 0.0
    epoch: int = 0
    total_epochs: int | None = None
    first_step_s: float | None = None
    restore_s: float | None = None
    checkpoint: CheckpointConfirmation | None = None
    warnings: tuple[JobWarning, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """The store's answer to a job.

    `checkpoint_request` is the id of the reallocation that waits for a checkpoint, or has it and is about to
    end this run; None without a request. It is also None once the lease of the requesting daemon expired more
    than a minute ago, so that a job keeps training when the daemon has died.
    """

    checkpoint_request: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What a reallocation moves, for the job's log. An empty `target` means a pause.

    `reason` is None where a round decided.
    """

    source: Allocation
    target: Allocation
    reason: str | None


# -------------------------------------------------------------------------------------------- for the daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRegistration:
    """A job as the daemon first read it from Slurm, with the terms in its Comment.

    One that `is_running` is not over, whatever was recorded before. `submitted_gpus` is its size as its owner
    submitted it, None where that is not known.
    """

    slurm_job_id: str
    terms: JobTerms
    name: str
    user_name: str
    user_id: int
    account: str
    partition: str
    cpus_per_gpu: int
    memory_per_gpu_mb: int
    submitted_at: datetime
    time_limit_s: float | None = None
    required_nodes: tuple[str, ...] = ()
    restart_count: int = 0
    is_running: bool = False
    submitted_gpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseRecord:
    """The last round's answer to a job that asks to be finished by a moment: see `model.Promise`."""

    state: PromiseState
    least_gpus: int | None = None
    finish_at: datetime | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierJob:
    """A job that can teach others of its kind: what it measured, and how far it came.

    `model` is its newest with θ, and `models` those by GPU type; `early_statistics` are the first that it
    reported. `progress` is in units of M0; that of a job that was not completed is a lower bound of its
    length. `mean_restart_delay_s` and the two after it are as in `JobRecord`.
    """

    slurm_job_id: str
    user_id: int
    account: str
    kind: str
    name: str
    state: JobState
    model: GoodputModel
    models: tuple[tuple[str, GoodputModel], ...]
    early_statistics: GradientStatistics | None
    progress: float
    recent_runs: tuple[RecentRun, ...]
    mean_restart_delay_s: float | None
    mean_standstill_s: float | None
    mean_warm_up_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedGpus:
    """The GPU seconds of a user's jobs in an account, spread evenly over a time."""

    user_name: str
    account: str
    since: datetime
    until: datetime
    gpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRecord:
    """The jobs of one kind and user. `max_gpus_seen` is 0 where none has measured a step."""

    kind: str
    user_name: str
    num_jobs: int
    num_completed: int
    newest_job: str
    newest_name: str
    max_gpus_seen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run of a job, as reported."""

    run_number: int
    restart_count: int
    phase: RunPhase
    gpus_per_node: tuple[int, ...]
    first_report_at: datetime
    last_report_at: datetime
    first_step_s: float | None
    restore_s: float | None
    num_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningRecord:
    """A warning of a job, with the first run that raised it."""

    warning: JobWarning
    run_number: int
    first_seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One goodput sample of a job."""

    at: datetime
    batch: BatchChoice | None
    throughput: float | None
    predicted_throughput: float | None
    efficiency: float | None
    progress: float
    epoch: int
    total_epochs: int | None

    @property
    def goodput(self) -> float | None:
        if self.throughput is None or self.efficiency is None:
            return None
        return self.throughput * self.efficiency


NEWEST_OF_A_KIND = 12
"""So many jobs of a kind and owner teach sizes: enough to have seen large ones, and few enough to read."""

MAX_DECLARATIONS = 32
"""At most so many declarations of a job are stored: the daemon ignores those of a job with so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A total number of epochs that a job has declared, and its epoch and progress when it first did.

    `least_total_progress` is the smallest progress·total/epoch of any report since, in
    units of M0; None before the first epoch ended.
    """

    total_epochs: int
    at: datetime
    epoch: int
    progress: float
    least_total_progress: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedJob:
    """What was decided about one job, with the facts of the whole decision that explain it.

    `excluded_reason` is why the job was excluded, None when it took part; `explanation` sums up all of this
    in one line.
    """

    objective: str
    solver: str
    fitness: float
    upper_bound: float | None
    gap: float | None
    timed_out: bool
    gpu_prices: tuple[tuple[str, float], ...]
    job: JobDecision
    excluded_reason: str | None
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord(DecidedJob):
    """What a round decided about one job."""

    round_id: int
    at: datetime
    shadow: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An allocation that Slurm did not start, of one job.

    `reason` is Slurm's own. `request` is what the job asked for then, without its size.
    """

    allocation: Allocation
    answer: SlurmAnswer
    at: datetime
    reason: str
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reallocation:
    """One job's change of allocation, as the journal has it.

    `times` holds when each step was journaled, in order. `from_restart_count` is Slurm's restart count when
    it was planned. `moves_running` is False for a job that was reshaped while it waited in the queue.
    `reason` tells people why it was planned and how it ended; code does not decide on it.

    `checkpoint_waived`: it proceeded without a confirmed checkpoint. Its owner allows that, or the run had
    made no step.
    `retargeted`: other jobs took its first target, and it got another.
    `continued_training`: the job went on training after the checkpoint it had confirmed, and was not moved.
    `job_failed`: the job failed in the target before its first step there.
    `taken_over`: a daemon repeated a command that the previous daemon may still give.
    `refusal`: the target that Slurm refused, the last one of several.
    `priority`: the one that the job got to keep its place, None for none; `priority_ended_at` is when it was
    taken off.

    Of one by requeue: `checkpoint_blocked_s` comes from the checkpoint that answered it. `first_step_at` is
    when the following run first reported a step. `time_left_s` is what was left of the job's time limit at
    the requeue, None for no limit. `store/journal/move_costs.py` computes the cost of a reallocation.

    Of one in place: `generation` is the number of the generation that it last asked for, None before the
    first, and `standstill_s` how long training stood still, None until it is known.
    """

    id: int
    slurm_job_id: str
    step: ReallocationStep
    source: Allocation
    target: Allocation
    moves_running: bool
    from_restart_count: int
    times: tuple[tuple[ReallocationStep, datetime], ...]
    cause: ReallocationCause = ReallocationCause.DECISION
    checkpoint_waived: bool = False
    retargeted: bool = False
    continued_training: bool = False
    job_failed: bool = False
    taken_over: bool = False
    reason: str | None = None
    checkpoint_blocked_s: float | None = None
    first_step_at: datetime | None = None
    time_left_s: float | None = None
    way: ReallocationWay = ReallocationWay.REQUEUE
    generation: int | None = None
    standstill_s: float | None = None
    refusal: Refusal | None = None
    priority: int | None = None
    priority_ended_at: datetime | None = None

    @property
    def is_pause(self) -> bool:
        """Whether it takes all GPUs of a running job."""
        return self.moves_running and not self.target

    def entered_at(self, step: ReallocationStep) -> datetime | None:
        return next((at for known, at in self.times if known is step), None)


class UnansweredRequest(NamedTuple):
    """A checkpoint request without effect: the job confirmed none, or went on training afterwards."""

    requested_at: datetime
    ended_at: datetime
    was_confirmed: bool = False


MIN_RECENT_RUN_S = 120.0
"""Models are not compared with a run that reported for less than this, in seconds."""

RECENT_RUNS = 4
"""A model is compared with so many of the job's last runs that reported for at least that long."""


class RecentRun(NamedTuple):
    """One of the last runs of a job: the progress it made, and on what.

    `progress` is in units of M0, from its first sample to its last. `allocations` is what the
    job had meanwhile by Slurm's accounting, each with its seconds; suspensions are not counted.
    """

    progress: float
    allocations: tuple[tuple[Configuration, float], ...]
    gpu_type: str | None = None

    @property
    def allocated_s(self) -> float:
        return sum(seconds for _, seconds in self.allocations)


class TrainingRun(NamedTuple):
    """A job's current run, which has made a step. `has_throughput_fit`: it has also reported a fitted θ."""

    slurm_job_id: str
    run_number: int
    has_throughput_fit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node of the last round, with the GPUs that it could allocate there; `gpu_type` may be empty."""

    name: str
    gpu_type: str
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStatus:
    """What the store knows of the daemon.

    `owner` has the lease, or had it until it expired; None when it was given back, or none was ever taken.
    The lease was renewed at `renewed_at` and ends at `expires_at`. `last_round_at` is when a round last
    decided, and `is_shadow` whether it was one that is recorded and not enacted. Rounds are at most
    `interval_s` apart, and the daemon polls Slurm every `watch_s`; None where not recorded.
    """

    owner: str | None = None
    renewed_at: datetime | None = None
    expires_at: datetime | None = None
    last_round_at: datetime | None = None
    is_shadow: bool = False
    interval_s: float | None = None
    watch_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """All that a round, and `pollux status`, need to know of one job.

    `started_at` is its first start. `allocation` is the last one that `observe_jobs` recorded.
    `num_restarts` counts the confirmed reallocations that requeued it; `mean_restart_delay_s` is the mean
    measured cost (`store/journal/move_costs.py`) of the last ten, None before the first. Of the last ten in
    place, `mean_standstill_s` is the mean standstill, and `mean_warm_up_s` the mean time for which the gained
    GPUs were idle, of those that gained some.
    The `last_decision` fields come from the last round that decided about the job.

    `models` are its newest model for each type of GPU that it is known to have run on, newest first.
    `declarations` are in the order in which they were first made. `last_allocated_at` is when it lost its
    last GPUs; None while it has some, and before it ever did. `last_reallocation` is the newest, open or
    ended. `warnings` has each warning of its runs once, oldest first.
    `checkpoint_bytes` is the size of its newest checkpoint, None before the first. `required_nodes` are
    those that its owner named, and `submitted_gpus` its size as submitted, None where unknown.
    `not_moved_reason` is why the last round could not move it.
    `prediction_error` is the mean of |throughput/predicted − 1|, each at most 1, over the last 16
    reports of the last run that has any; 0 without one. `unanswered` are the checkpoint requests without
    effect among its last 16 moves, oldest first. `recent_runs` are its last 4 runs that reported for two
    minutes or more, newest first. `refusals` are what Slurm refused in its last moves, oldest first.

    `generations` are the newest that has regrouped, and the newest of all, by number, where there are any.

    An owner may put a new token into the job's Comment. Moves and declarations from before still count, and
    `first_submitted_at` is when the first row of the job was submitted; None where this is the first.
    `promise` is the answer to its moment, None before the first. `fitting_atomic` is the largest
    micro-batch that fits into memory by jobs of its kind, in examples, None where unknown.
    """

    slurm_job_id: str
    terms: JobTerms
    name: str
    user_name: str
    account: str
    partition: str
    cpus_per_gpu: int
    memory_per_gpu_mb: int
    state: JobState
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    allocation: Allocation
    model: GoodputModel | None
    sample: Sample | None
    run: RunRecord | None
    open_reallocation: Reallocation | None
    num_restarts: int
    mean_restart_delay_s: float | None
    mean_standstill_s: float | None
    mean_warm_up_s: float | None
    last_decision: Allocation | None
    last_decision_speedup: float | None
    last_decision_bound_by: str | None
    last_decision_at: datetime | None
    models: tuple[tuple[str, GoodputModel], ...] = ()
    declarations: tuple[Declaration, ...] = ()
    last_allocated_at: datetime | None = None
    last_reallocation: Reallocation | None = None
    granted_time_limit_s: float | None = None
    warnings: tuple[WarningRecord, ...] = ()
    checkpoint_bytes: int | None = None
    required_nodes: tuple[str, ...] = ()
    not_moved_reason: str | None = None
    prediction_error: float = 0.0
    unanswered: tuple[UnansweredRequest, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    submitted_gpus: int | None = None
    recent_runs: tuple[RecentRun, ...] = ()
    generations: tuple[GenerationRecord, ...] = ()
    first_submitted_at: datetime | None = None
    promise: PromiseRecord | None = None
    fitting_atomic: int | None = None

    @property
    def paused_at(self) -> datetime | None:
        """When the daemon paused the job; None for a job that is not paused."""
        last = self.last_reallocation
        if self.state.is_over or last is None or not last.is_pause:
            return None
        if self.allocation not in (Allocation(), last.source):
            return None  # it runs elsewhere; until a round, `allocation` is still the one before the pause
        if self.run is not None and self.run.restart_count > last.from_restart_count:
            return None  # it ran after the pause, and was requeued externally
        return last.entered_at(ReallocationStep.CONFIRMED)

    @property
    def is_pause_ordered(self) -> bool:
        """Whether the job is paused because somebody ordered it."""
        last = self.last_reallocation
        return self.paused_at is not None and last is not None and last.cause.is_order


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObservation:
    """A registered job as one bulk read of Slurm showed it.

    `gpu_type` is that of the GPUs it has or had: None for none, several types or nameless ones.
    `started_at` and `ended_at` are those of its newest run, by Slurm's clock; `ended_at` is also None for a
    job that is being requeued, whose end Slurm does not show. A requeue resets `submitted_at`.
    `last_allocation` is the allocation of a run that is over.

    Of a run that was suspended, `counted_s` is how many seconds it had run before, and either `suspended_at`
    or `resumed_at` is set. `changes` are the times at which a running job's allocation
    changed, with what it had from then on, oldest first. `in_place`: its GPUs are those of its wings, and
    `changes` are their starts and ends, of all starts of the job, as far back as slurmctld has them.
    `estimated`: Slurm does not have the job, and how and when it ended is a guess.
    """

    slurm_job_id: str
    state: JobState
    allocation: Allocation
    started_at: datetime | None
    ended_at: datetime | None
    gpu_type: str | None = None
    restart_count: int | None = None
    submitted_at: datetime | None = None
    last_allocation: Allocation = field(default_factory=Allocation)
    suspended_at: datetime | None = None
    resumed_at: datetime | None = None
    counted_s: float = 0.0
    changes: tuple[tuple[datetime, Allocation], ...] = ()
    in_place: bool = False
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRecord:
    """An interval of time in which a job has one allocation. `ended_at` is None while it lasts.

    `restart_count` is that of its run, None where unknown. `estimated`: Slurm did not show exactly when it
    began or ended.
    """

    slurm_job_id: str
    allocation: Allocation
    started_at: datetime
    ended_at: datetime | None
    restart_count: int | None = None
    estimated: bool = False
