"""What jobs, the daemon and people exchange through the database: frozen types, and no promises.

`interface.py` says what a store does with them, and hands them on under its own name.
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
    JobDecision,
    JobState,
    JobTerms,
    JobWarning,
    ReallocationCause,
    ReallocationStep,
)

# ------------------------------------------------------------------------------------------ from the agent


class RunPhase(enum.Enum):
    """Where a run stands. `WAITING` means: checkpoint confirmed, all ranks wait to be stopped."""

    STARTING = "starting"
    TRAINING = "training"
    WAITING = "waiting"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfirmation:
    """A checkpoint is on disk, whole. `request_id` is the reallocation that asked, None for SIGTERM's.

    `blocked_s` is how long training stood still for it. What is stored is no longer than the time since the
    request, or since the run's first report.
    """

    request_id: int | None
    blocked_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One message of a job's agent (rank 0). `sequence` grows by one per report within a run.

    `run_number` is the run's claim on its checkpoint directory (0, 1, ...); `restart_count` is Slurm's.
    `gpus_per_node` is what the run really got, in rank order. `first_step_s` is process start to the end of
    the first optimizer step, None until then; `restore_s` is the part spent reading the checkpoint.
    `throughput` (examples/s), `step_time_s` and `efficiency` are measured over the last interval;
    `predicted_throughput` is what the model in force predicts for this configuration and batch.
    `num_examples` are those that this run has trained on so far, None from an agent that does not count.
    `progress` is in scale-invariant iterations; `epoch` is the one under way, `total_epochs` what the loop
    declared with `remaining_epochs_until`, None if nothing. `warnings` are all that the run has warned of.
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
    """The store's answer to a job. `checkpoint_request` is the id of the reallocation that waits for a
    checkpoint, or has it and is about to end this run; None when nothing is asked (any more). It is None,
    too, once the lease of the daemon that asked ran out more than a minute ago: a job does not stand still
    for a daemon that has died, but trains on.
    """

    checkpoint_request: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Where a job is moved, for its log. An empty `target`: it is paused. `reason` is None for a round's."""

    source: Allocation
    target: Allocation
    reason: str | None


# -------------------------------------------------------------------------------------------- for the daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRegistration:
    """A job as the daemon first saw it in Slurm, with the terms of its Comment."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One start of a job, as far as its reports tell."""

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
    """Something that a job warned of, with the first of its runs that did."""

    warning: JobWarning
    run_number: int
    first_seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The latest goodput sample of a job."""

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


# A job that has named so many numbers of epochs is not believed any more; the rest need not be kept.
MAX_DECLARATIONS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One number of epochs that a job has declared, with what was done when it first did.

    `least_total_progress` is the least that it ever amounted to, progress·total/epoch, in scale-invariant
    iterations; None before the first epoch ended.
    """

    total_epochs: int
    at: datetime
    epoch: int
    progress: float
    least_total_progress: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """What a round decided about one job, with what of the round is needed to understand it.

    `excluded` is why the job was left as it is, None when it took part; `explanation` is all in one line.
    """

    round_id: int
    at: datetime
    shadow: bool
    objective: str
    solver: str
    fitness: float
    upper_bound: float | None
    gap: float | None
    timed_out: bool
    gpu_prices: tuple[tuple[str, float], ...]
    job: JobDecision
    excluded: str | None
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reallocation:
    """One job changing allocation. `times` holds when each step was journaled, in order.

    `from_restart_count` is Slurm's restart count when it was planned; `moves_running` is False for a job
    that was reshaped while it waited in the queue. `reason` says for people why it was planned and how it
    ended; nothing is decided by it.

    `checkpoint_waived`: it went on without a confirmed checkpoint, as the owner allows. `retargeted`: others
    took its first target, and it got another. `trained_on`: the job trained on after the checkpoint that it
    confirmed, and stayed where it was. `job_failed`: the job failed in the target before its first step
    there. `taken_over`: a daemon repeated a command in it that the daemon before may still give.

    `checkpoint_blocked_s` comes from the checkpoint that answered it; `first_step_at` is when the run that
    followed first told of a step. `time_left_s` is what the job had left of its time limit when it was
    requeued, None for no limit. `store/journal/move_costs.py` makes the cost of a reallocation from these.
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
    trained_on: bool = False
    job_failed: bool = False
    taken_over: bool = False
    reason: str | None = None
    checkpoint_blocked_s: float | None = None
    first_step_at: datetime | None = None
    time_left_s: float | None = None

    @property
    def is_pause(self) -> bool:
        """Whether a running job is left without GPUs by it."""
        return self.moves_running and not self.target

    def entered_at(self, step: ReallocationStep) -> datetime | None:
        return next((at for known, at in self.times if known is step), None)


class UnansweredRequest(NamedTuple):
    """A request of a checkpoint that came to nothing: the job confirmed none, or trained on afterwards."""

    asked_at: datetime
    ended_at: datetime
    was_confirmed: bool = False


LEAST_RUN_S = 120.0
"""No model is judged by a run that reported for less than this, in seconds."""

RUNS_JUDGED = 4
"""A model is judged by so many of the job's last runs that reported for longer."""


class Pace(NamedTuple):
    """What a run made, and on what.

    `made` is its progress in scale-invariant iterations from its first sample to its last; `held` is what the
    job held meanwhile by Slurm's books, and for how many seconds. So the time of a suspension is not in it.
    """

    made: float
    held: tuple[tuple[Configuration, float], ...]
    gpu_type: str | None = None

    @property
    def held_s(self) -> float:
        return sum(seconds for _, seconds in self.held)


class Milestone(NamedTuple):
    """How far a job's current run has come: it trains; `is_measured`: and its throughput was fitted in it."""

    slurm_job_id: str
    run_number: int
    is_measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSeen:
    """What the store knows of the daemon. `owner` holds the lease, or held it until it fell silent; None
    when the last one gave it back, or none ever ran. Its lease was prolonged at `renewed_at` and ends at
    `expires_at`. `last_round_at` is when a round last decided. Its rounds come `interval_s` apart at most,
    and it looks at Slurm every `watch_s`, None where it has not said.
    """

    owner: str | None = None
    renewed_at: datetime | None = None
    expires_at: datetime | None = None
    last_round_at: datetime | None = None
    interval_s: float | None = None
    watch_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """All that a round, and `pollux status`, need to know of one job.

    `started_at` is its first start. `allocation` is the last one that `observe_jobs` recorded.
    `num_restarts` counts the confirmed reallocations that requeued it; `mean_restart_delay_s` is the
    measured mean cost (`pollux_slurm.store.journal.move_costs`) of the last ten, None before the first.
    `last_decision_*` come from the last round that decided about the job.

    `models` are the newest model of each type of GPU that the job is known to have run on, newest first.
    `declarations` are the numbers of epochs that it has declared, in order. `last_held_at` is when it lost
    its last GPUs; None while it holds some, and before it ever did. `last_reallocation` is the newest, open
    or ended. `warnings` are what its runs warned of, each once, by the time it was first heard.
    `required_nodes` are those that its owner asked for by name, and `left_out_because` is why the
    last round decided nothing about it, or left it as it is.
    `prediction_error` is the mean of |throughput/predicted − 1|, each at most 1, over the last 16
    reports of the last run that has any; 0 without one. `unanswered` are the requests of a checkpoint that
    it did not answer, of its last 16 moves, oldest first. `paces` are what its last 4 runs made that
    reported for two minutes or more, newest first.

    Where its owner put another token into its Comment, what is known of its moves and declarations from
    before counts on, and `first_submitted_at` is when it came; None where it is the first.
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
    last_decision: Allocation | None
    last_decision_speedup: float | None
    last_decision_bound_by: str | None
    last_decision_at: datetime | None
    models: tuple[tuple[str, GoodputModel], ...] = ()
    declarations: tuple[Declaration, ...] = ()
    last_held_at: datetime | None = None
    last_reallocation: Reallocation | None = None
    granted_time_limit_s: float | None = None
    warnings: tuple[WarningRecord, ...] = ()
    required_nodes: tuple[str, ...] = ()
    left_out_because: str | None = None
    prediction_error: float = 0.0
    unanswered: tuple[UnansweredRequest, ...] = ()
    paces: tuple[Pace, ...] = ()
    first_submitted_at: datetime | None = None

    @property
    def paused_at(self) -> datetime | None:
        """When the daemon took a running job's GPUs for the time being; None while it runs or just waits."""
        last = self.last_reallocation
        if self.state.is_over or last is None or not last.is_pause:
            return None
        if self.allocation not in (Allocation(), last.source):
            return None  # it runs elsewhere; where it ran is what was seen before the pause, until a round
        if self.run is not None and self.run.restart_count > last.from_restart_count:
            return None  # it ran since, and was put back by another hand
        return last.entered_at(ReallocationStep.CONFIRMED)

    @property
    def is_paused_by_hand(self) -> bool:
        """Whether somebody ordered the pause that the job is in."""
        last = self.last_reallocation
        return self.paused_at is not None and last is not None and last.cause.is_order


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObservation:
    """What one bulk read of Slurm said of a registered job.

    `gpu_type` is that of the GPUs it holds or held, None for none, several or a nameless one; with
    `restart_count` it tells on what the run of this start measures. `started_at` and `ended_at` are the
    run's, by Slurm's clock; `ended_at` is None, too, for a job that is just being requeued, whose end Slurm
    does not show. `submitted_at` is reset by a requeue. `last_allocation` is what a run that is over had.

    Of a run that was suspended, `counted_s` is how long it had run before, in seconds, and either
    `suspended_at` or `resumed_at` is set. `resized_at` is when GPUs were last taken from a running job.
    `estimated`: Slurm knows the job no more, and how and when it ended is a guess.
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
    resized_at: datetime | None = None
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRecord:
    """A stretch of time during which a job held an allocation. `ended_at` is None while it does.

    `restart_count` is that of its run, None where not known; `estimated` says that Slurm did not tell when it
    began or ended.
    """

    slurm_job_id: str
    allocation: Allocation
    started_at: datetime
    ended_at: datetime | None
    restart_count: int | None = None
    estimated: bool = False
