"""What jobs, the daemon and people exchange through the database, and the promises of every backend.

Contract, held by each implementation and tested by one suite over all of them:

- **Whole or not at all.** Each method is one transaction. When it returns, its effect is durable; when it
  raises, there is none. A lock or an outage raises `StoreUnavailable`, which is worth trying again; no
  driver's exception passes this layer.
- **Idempotent writes.** Sending the same report, registration, step or release twice changes nothing the
  second time, so a caller that did not see the answer may simply repeat the call.
- **A report is data from a stranger.** Every number is checked (finite, in range, below a bound) before it
  is stored; a bad report raises `ReportRefusedError` with the field and leaves the last good model in force.
- **Tokens.** A job speaks with its token; only the token's SHA-256 is stored. An unknown token raises
  `UnknownJobError`: the job is not registered yet (the daemon registers it from its next bulk read), and
  the agent tries again later.
- **Runs.** A report carries the run's number. A higher number than the current run's opens a new run; a
  lower one raises `StaleRunError`: a leftover process may neither report nor confirm a checkpoint.
- **Time** is the caller's: every method that stamps a row takes an aware UTC datetime. Only what a job
  reports to PostgreSQL bears the server's time: a stranger does not choose it.
- **Bounded.** Each method sends a number of statements that does not grow with the number of jobs, nodes or
  rows: a round reads and writes in fewer than sixty (`tests/store/test_statements.py` holds each number).
  On PostgreSQL a job may report so often at once and so often a second, and is then told
  `ReportsLimitedError`; nobody waits for a lock that a job holds.
- **History is kept.** Models, samples, allocations, reallocations, rounds are appended; only `prune` deletes.

Two doors: `AgentStore` is all that a job may do; `Store` is the daemon's and the readers'.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pollux_slurm.model import (
    Allocation,
    BatchChoice,
    Decision,
    GoodputModel,
    JobDecision,
    JobState,
    JobTerms,
    Problem,
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

    `blocked_s` is how long training stood still for it.
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
    `progress` is in scale-invariant iterations; `epoch` is the one under way, `total_epochs` what the loop
    declared with `remaining_epochs_until`, None if nothing.
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
    progress: float = 0.0
    epoch: int = 0
    total_epochs: int | None = None
    first_step_s: float | None = None
    restore_s: float | None = None
    checkpoint: CheckpointConfirmation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """The store's answer to a job. `checkpoint_request` is the id of the reallocation that waits for a
    checkpoint, or has it and is about to end this run; None when nothing is asked (any more). It is None,
    too, once the lease of the daemon that asked ran out more than a minute ago: a job does not stand still
    for a daemon that has died, but trains on.
    """

    checkpoint_request: int | None


class AgentStore(Protocol):
    """All that a job may do: two calls, each with the job's own token."""

    def report(self, token: str, report: Report, *, at: datetime) -> None:
        """Record a report.

        Raises `UnknownJobError`, `StaleRunError`, `ReportRefusedError`, `StoreUnavailable`; on PostgreSQL its
        kind `ReportsLimitedError`, too.
        A confirmation for a reallocation in CHECKPOINT_REQUESTED moves it to CHECKPOINTED in the same
        transaction; one that asks for nothing any more is recorded with the run only.
        """

    def poll(self, token: str, run_number: int, *, at: datetime) -> Poll:
        """Return what the job should do. Raises `UnknownJobError`, `StaleRunError`, `StoreUnavailable`."""

    def close(self) -> None:
        """Give back the connections."""


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
    Of rounds recorded before schema 0003, only the job's allocation, speedup and bound are known.
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
    that was reshaped while it waited in the queue. `reason` says why it ended as it did.

    `checkpoint_blocked_s` comes from the checkpoint that answered it; `first_step_at` is when the run that
    followed first told of a step. `time_left_s` is what the job had left of its time limit when it was
    requeued, None for no limit. `pollux_slurm.store.costs` makes the cost of a reallocation from these.
    """

    id: int
    slurm_job_id: str
    step: ReallocationStep
    source: Allocation
    target: Allocation
    moves_running: bool
    from_restart_count: int
    times: tuple[tuple[ReallocationStep, datetime], ...]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """All that a round, and `pollux status`, need to know of one job.

    `started_at` is its first start. `allocation` is the last one that `observe_jobs` recorded.
    `num_restarts` counts the confirmed reallocations that requeued it; `mean_restart_delay_s` is the
    measured mean cost (`pollux_slurm.store.costs`) of the last ten, None before the first.
    `last_decision_*` come from the last round that decided about the job.

    `models` are the newest model of each type of GPU that the job is known to have run on, newest first.
    `declarations` are the numbers of epochs that it has declared, in order. `last_held_at` is when it lost
    its last GPUs; None while it holds some, and before it ever did. `last_reallocation` is the newest, open
    or ended.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObservation:
    """What one bulk read of Slurm said of a registered job.

    `gpu_type` is that of the GPUs it holds, None for none, several or a nameless one; with `restart_count`
    it tells on what the run of this start measures.
    """

    slurm_job_id: str
    state: JobState
    allocation: Allocation
    started_at: datetime | None
    ended_at: datetime | None
    gpu_type: str | None = None
    restart_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRecord:
    """A stretch of time during which a job held an allocation. `ended_at` is None while it does."""

    slurm_job_id: str
    allocation: Allocation
    started_at: datetime
    ended_at: datetime | None


class Store(AgentStore, Protocol):
    """The daemon's and the readers' door. Job ids are Slurm's numbers as text."""

    # lease (invariant 10)
    def acquire_lease(self, owner: str, *, ttl_s: float, at: datetime) -> bool:
        """Take or prolong the daemon's lease; False while another owner's has not run out."""

    def holds_lease(self, owner: str, *, at: datetime) -> bool:
        """Tell whether `owner` holds the lease at this moment."""

    def lease_owner(self) -> str | None:
        """Return who took the lease last, even if it ran out; None when it was given back."""

    def release_lease(self, owner: str) -> None:
        """Give the lease back, if `owner` holds it."""

    # jobs
    def register_jobs(self, jobs: Sequence[JobRegistration], *, at: datetime) -> tuple[str, ...]:
        """Insert the jobs not known yet; leave known ones as they are.

        A newcomer whose token hash belongs to another job (somebody copied a Comment), or with terms that no
        job can have, is left out, so that it cannot block the others; the ids left out are returned.

        A number that comes with another token is another job's, and the earlier bearer is over: slurmctld's
        numbers begin anew one day, and an owner who lost the token puts a new one into the Comment. While
        the owner's earlier job has an open reallocation it stays, because the daemon may hold it; another
        user's ends as FAILED.
        """

    def observe_jobs(self, observations: Sequence[JobObservation], *, at: datetime) -> None:
        """Record state and allocation of registered jobs, in a bounded number of statements.

        Unknown ids are ignored. A changed allocation closes the open stretch of history and opens another.
        A job that is over gets its end time, its open allocation closed, and its token stops working.
        """

    def active_jobs(self) -> tuple[JobRecord, ...]:
        """Return every job that is not over, in a bounded number of statements."""

    def jobs(self, *, include_finished: bool = True) -> tuple[JobRecord, ...]:
        """Return jobs, oldest first."""

    def job(self, slurm_job_id: str) -> JobRecord:
        """Return one job; raises `UnknownJobError`."""

    # housekeeping
    def tend(self) -> tuple[str, ...]:
        """Do what keeps the store well, once a round; return what its admin should know of, a line each.

        On PostgreSQL: end connections of logins that only jobs use and that last longer than any report, and
        undo what whoever has a login that jobs share has changed about it.
        """

    # rounds
    def record_round(self, problem: Problem, decision: Decision, *, shadow: bool, at: datetime) -> int:
        """Store a decision with the problem it was made from (invariant 9); return the round's number."""

    def round_problem(self, round_id: int | None = None) -> tuple[Problem, Decision]:
        """Return what `record_round` stored, equal to what was given; of the last round if none is named.

        Raises `StoreError` when there is no such round.
        """

    def decision(self, slurm_job_id: str, round_id: int | None = None) -> DecisionRecord | None:
        """Return what the last round that decided about a job, or a certain one, decided; None if none did.

        Raises `UnknownJobError` for a job that is not registered.
        """

    # reallocations (invariant 5: the journal)
    def plan_reallocation(
        self,
        slurm_job_id: str,
        *,
        source: Allocation,
        target: Allocation,
        moves_running: bool,
        from_restart_count: int,
        round_id: int | None,
        at: datetime,
        reason: str | None = None,
    ) -> Reallocation:
        """Journal a new reallocation in PLANNED. A job has at most one open: a second raises `StoreError`.

        `reason` is why it is planned, where no round decided so.
        """

    def advance_reallocation(
        self,
        reallocation_id: int,
        step: ReallocationStep,
        *,
        expected: ReallocationStep,
        at: datetime,
        reason: str | None = None,
        time_left_s: float | None = None,
    ) -> bool:
        """Move from `expected` to `step`; False, without effect, when it is no longer at `expected`, or when
        the job is just confirming its checkpoint (then another look tells).

        True as well when it already is at `step` (the call was repeated). Steps only go on, and nothing
        follows an end: any other move raises `StoreError`.
        """

    def retarget_reallocation(
        self, reallocation_id: int, target: Allocation, *, expected: ReallocationStep, reason: str
    ) -> bool:
        """Give an open reallocation another target, and say why; False, without effect, when it is no longer
        at `expected`.
        """

    def open_reallocations(self) -> tuple[Reallocation, ...]:
        """Return the reallocations that have not ended, oldest first."""

    def reallocations(self, slurm_job_id: str | None = None) -> tuple[Reallocation, ...]:
        """Return all reallocations (of one job), oldest first."""

    # history
    def allocation_history(self, slurm_job_id: str) -> tuple[AllocationRecord, ...]:
        """Return a job's stretches of allocation, oldest first."""

    def run_history(self, slurm_job_id: str) -> tuple[RunRecord, ...]:
        """Return a job's runs, oldest first."""

    def model_history(self, slurm_job_id: str) -> tuple[tuple[datetime, GoodputModel], ...]:
        """Return each model that a job has reported, with when it came, oldest first."""

    def sample_history(self, slurm_job_id: str) -> tuple[Sample, ...]:
        """Return a job's goodput samples, oldest first."""
