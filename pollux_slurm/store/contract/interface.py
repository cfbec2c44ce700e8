"""The store's contract: what jobs, the daemon and people may call, and what every backend guarantees.

Each implementation keeps these guarantees, and one test suite runs over all of them:

- **Atomic.** Each method is one transaction. When it returns, its effect is durable; when it raises, there
  is none. A lock or an outage raises `StoreUnavailable`, after which a retry makes sense. No driver's
  exception passes this layer.
- **Idempotent writes.** Repeating a report, registration, step or release has no further effect. So a caller
  that did not get the answer repeats the call.
- **Reports are untrusted.** Every number is checked (finite, in range, bounded) before it is stored. A bad
  report raises `ReportRefusedError` with the field, and the last good model stays in use.
- **Tokens.** A job authenticates with its token; only the token's SHA-256 is stored. An unknown token raises
  `UnknownJobError`: the job is not registered yet. The daemon registers it from its next bulk read of Slurm,
  and the agent tries again later.
- **Runs.** A report has the run's number. A higher number than the current run's opens a new run. A lower one
  raises `StaleRunError`: a leftover process can neither report nor confirm a checkpoint.
- **Time** is the caller's: every method that stamps a row takes an aware UTC datetime. Reports to PostgreSQL
  are stamped by the server, because an untrusted client must not choose their time.
- **Bounded.** The number of statements of a method does not grow with the number of jobs, nodes or rows. A
  round takes fewer than sixty (`tests/store/access/test_statements.py` has each number). PostgreSQL limits
  the reports of a job, and of all running jobs of a user, and raises `ReportRateError` above the limit.
  It raises `UnknownJobError` for a job that Slurm was not seen to run, or that reports more nodes than it
  has. Nobody waits for a lock that a job has taken. In SQLite, whoever may report may also write the file.
- **History is kept.** Models, samples, allocations, reallocations and rounds are appended; only `prune`
  deletes.

`JobStore` is all that a job may call; `Store` is for the daemon and for people with its rights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from pollux_slurm.model import (
    AccountedRun,
    Allocation,
    Decision,
    GoodputModel,
    Problem,
    ReallocationCause,
    ReallocationStep,
    ReallocationWay,
)
from pollux_slurm.store.contract.membership import (
    GenerationMember,
    GenerationRecord,
    GenerationState,
    MembershipStore,
)
from pollux_slurm.store.contract.types import (
    MAX_DECLARATIONS,
    MIN_RECENT_RUN_S,
    NEWEST_OF_A_KIND,
    RECENT_RUNS,
    AllocationRecord,
    CheckpointConfirmation,
    DaemonStatus,
    DecidedJob,
    DecisionRecord,
    Declaration,
    EarlierJob,
    JobObservation,
    JobRecord,
    JobRegistration,
    KindRecord,
    Move,
    NodeRecord,
    Poll,
    PromiseRecord,
    Reallocation,
    RecentRun,
    Refusal,
    Report,
    RunPhase,
    RunRecord,
    Sample,
    TrainingRun,
    UnansweredRequest,
    UsedGpus,
    WarningRecord,
)

__all__ = [
    "MAX_DECLARATIONS",
    "MIN_RECENT_RUN_S",
    "NEWEST_OF_A_KIND",
    "RECENT_RUNS",
    "AgentStore",
    "AllocationRecord",
    "CheckpointConfirmation",
    "DaemonStatus",
    "DecidedJob",
    "DecisionRecord",
    "Declaration",
    "EarlierJob",
    "GenerationMember",
    "GenerationRecord",
    "GenerationState",
    "JobObservation",
    "JobRecord",
    "JobRegistration",
    "JobStore",
    "KindRecord",
    "MembershipStore",
    "Move",
    "NodeRecord",
    "Poll",
    "PromiseRecord",
    "Reallocation",
    "RecentRun",
    "Refusal",
    "Report",
    "RunPhase",
    "RunRecord",
    "Sample",
    "Store",
    "TrainingRun",
    "UnansweredRequest",
    "UsedGpus",
    "WarningRecord",
]


class AgentStore(Protocol):
    """The API for jobs: three calls, each with the job's own token."""

    def report(self, token: str, report: Report, *, at: datetime) -> int | None:
        """Record a report; return how many examples fit into memory at once by jobs of its kind, if known.

        Raises `UnknownJobError`, `StaleRunError`, `ReportRefusedError`, `StoreUnavailable`; on PostgreSQL its
        kind `ReportRateError`, too.
        A confirmation for a reallocation in CHECKPOINT_REQUESTED moves it to CHECKPOINTED in the same
        transaction. For one that is past that step, the checkpoint is recorded with the run only.
        """

    def poll(self, token: str, run_number: int, *, at: datetime) -> Poll:
        """Return what the job should do. Raises `UnknownJobError`, `StaleRunError`, `StoreUnavailable`."""

    def move(self, token: str, request_id: int) -> Move | None:
        """Return what this reallocation of the job moves; None where the job has none of that id.

        Raises `UnknownJobError`, `StoreUnavailable`.
        """

    def close(self) -> None:
        """Close the connections."""


class JobStore(AgentStore, MembershipStore, Protocol):
    """All that a job may call. A job whose replicas are fixed needs the first half only."""

    def promise(self, token: str) -> PromiseRecord | None:
        """Return the last answer to the moment by which the job is to be finished; None before the first.

        Raises `UnknownJobError`, `StoreUnavailable`.
        """


class DaemonLease(Protocol):
    """The lease of the daemon that acts, and when a round last decided."""

    def acquire(
        self,
        owner: str,
        *,
        ttl_s: float,
        at: datetime,
        interval_s: float | None = None,
        watch_s: float | None = None,
    ) -> bool:
        """Acquire or renew the daemon's lease; False while another owner's has not expired.

        Raises `SchemaVersionError` where the store has been given another release's schema meanwhile.
        `interval_s` and `watch_s` are the daemon's intervals, for `daemon_status`.
        """

    def is_held_by(self, owner: str, *, at: datetime) -> bool:
        """Return whether `owner` has the lease at this moment."""

    def release(self, owner: str) -> None:
        """Give the lease back, if `owner` has it."""

    def daemon_status(self) -> DaemonStatus:
        """Return who acquired the lease last, even if it has expired, and when a round last decided."""


class RegisteredJobs(Protocol):
    """Adaptive jobs: their terms, what Slurm shows of them, and what they have reported."""

    def register(self, jobs: Sequence[JobRegistration], *, at: datetime) -> tuple[str, ...]:
        """Insert new jobs; return the ids of those left out. Of a known one only its owner's terms change.

        A known job that was recorded as over, and runs with its token, is not over.

        A job is left out when its terms are impossible, or when its token hash belongs to another job because
        somebody copied a Comment. So it cannot block the others.

        A known job id with another token is another job, and the earlier one ends: either slurmctld has
        started its job ids anew, or the owner lost the token and put a new one into the Comment. If the
        earlier job has an open reallocation, its owner's new token has to wait until that ends; for another
        user's job, the reallocation ends as FAILED. Within one submission, restarts, delays, unanswered
        requests and declarations still count, and a run that was under way is split between its jobs.
        """

    def observe(self, observations: Sequence[JobObservation], *, at: datetime) -> frozenset[str]:
        """Record state and allocation of registered jobs, in a bounded number of statements.

        Return the ids of those for which something was written: the records of all others still hold.

        Unknown ids are ignored. Allocation intervals follow Slurm's runs, by Slurm's own times: a new run, or
        a changed allocation, ends the open interval and begins another. What Slurm does not show to a second
        is marked as estimated. The intervals of a job in place add up to what its wings had. A job that is
        over gets its end time, its open interval is ended, and its token is rejected from then on.
        """

    def estimated(self, *, since: datetime) -> tuple[tuple[str, datetime], ...]:
        """Return the ids and submission times of jobs with estimated intervals, newest first.

        Those that ended before `since` are left out, and those in place, whose GPUs are other jobs'.
        """

    def correct_estimated(self, runs: Sequence[AccountedRun]) -> tuple[str, ...]:
        """Correct estimated intervals from the runs in Slurm's accounting database.

        Exact intervals stay as they are. Returns the ids of the jobs that have become exact.
        """

    def record_not_moved(self, reasons: Mapping[str, str]) -> None:
        """Record why the last round could not move jobs; clear those of all others that are not over."""

    def record_promises(self, answers: Mapping[str, PromiseRecord]) -> None:
        """Record a round's answers to jobs that ask to be finished by a moment; ignore unknown ids."""

    def record_fitting(self, known: Mapping[str, int | None]) -> None:
        """Record how many examples fit into memory at once by jobs of a job's kind; ignore unknown ids."""

    def active(self) -> tuple[JobRecord, ...]:
        """Return every job that is not over, in a bounded number of statements."""

    def all(self, *, include_finished: bool = True) -> tuple[JobRecord, ...]:
        """Return jobs, oldest first."""

    def get(self, slurm_job_id: str) -> JobRecord:
        """Return one job; raises `UnknownJobError`."""

    def training_runs(self) -> frozenset[TrainingRun]:
        """Return the current runs that train, of jobs that are not over, by one small statement.

        A run counts from its first reported step until it waits to be stopped, or has finished.
        """

    def used_gpus(self, *, since: datetime, at: datetime) -> tuple[UsedGpus, ...]:
        """Return the GPUs that users had from the day (UTC) of `since` up to `at`, in two statements.

        Ended intervals are summed by day; those that last are returned from their start.
        """


class JobKinds(Protocol):
    """Kinds of jobs, and what the earlier ones of each have measured."""

    def earlier_jobs(self, *, since: datetime) -> tuple[EarlierJob, ...]:
        """Return jobs of the kinds of those that are not over, submitted after `since`, newest first.

        They are the `NEWEST_OF_A_KIND` newest of each kind and owner that have measured step times, and as
        many that are over.
        """

    def all(self, kind: str | None = None, *, since: datetime | None = None) -> tuple[KindRecord, ...]:
        """Return the kinds of each user, those of the newest jobs first; or only `kind` of each user.

        Only jobs count that were submitted after `since`.
        """

    def forget(self, kind: str, *, user_name: str | None = None) -> int:
        """Take a kind from all jobs, or those of one user, and return their number."""


class RoundRecords(Protocol):
    """Rounds, each with its problem and its decision."""

    def record(self, problem: Problem, decision: Decision, *, shadow: bool, at: datetime) -> int:
        """Store a decision with its problem; return the round's number."""

    def problem(self, round_id: int | None = None) -> tuple[Problem, Decision]:
        """Return the problem and decision that `record_round` stored, of the last round by default.

        Raises `StoreError` when there is no such round, or none that this release reads.
        """

    def nodes(self) -> tuple[NodeRecord, ...]:
        """Return the nodes of the last round, by name; none before the first."""

    def decision(self, slurm_job_id: str, round_id: int | None = None) -> DecisionRecord | None:
        """Return the decision about a job in its last round, or in `round_id`; None if there is none.

        Raises `UnknownJobError` for a job that is not registered.
        """


class Journal(Protocol):
    """The journal of reallocations."""

    def plan(
        self,
        slurm_job_id: str,
        *,
        source: Allocation,
        target: Allocation,
        moves_running: bool,
        from_restart_count: int,
        round_id: int | None,
        at: datetime,
        cause: ReallocationCause = ReallocationCause.DECISION,
        reason: str | None = None,
        way: ReallocationWay = ReallocationWay.REQUEUE,
    ) -> Reallocation:
        """Journal a new reallocation in PLANNED. A job has at most one open: a second raises `StoreError`.

        `reason` tells people why it is planned, where no round decided so.
        """

    def advance(
        self,
        reallocation_id: int,
        step: ReallocationStep,
        *,
        expected: ReallocationStep,
        at: datetime,
        reason: str | None = None,
        time_left_s: float | None = None,
        checkpoint_waived: bool = False,
        continued_training: bool = False,
        job_failed: bool = False,
        taken_over: bool = False,
    ) -> bool:
        """Advance from `expected` to `step`; return whether it is at `step`.

        False, without effect, when it is at another step than `expected`, or when the job is just confirming
        its checkpoint: read it again later. True also when it is already at `step`, so that the call can be
        repeated. Any other order of steps, or a step after an end, raises `StoreError`. So does
        REGROUP_REQUESTED, which is `request_regroup`'s; it is followed by REGROUPED, ROLLED_BACK or FAILED.

        `reason` replaces the earlier text. A flag that is set stays set.
        """

    def request_regroup(
        self,
        reallocation_id: int,
        members: Sequence[GenerationMember],
        *,
        expected: ReallocationStep,
        at: datetime,
    ) -> GenerationRecord | None:
        """Plan the job's next generation, and journal its number and REGROUP_REQUESTED, in one transaction.

        `expected` is PLANNED, or REGROUP_REQUESTED for a second generation of the same reallocation. Returns
        None, without effect, where it is at another step. Raises as `plan_generation` does.
        """

    def retarget(
        self, reallocation_id: int, target: Allocation, *, expected: ReallocationStep, reason: str
    ) -> bool:
        """Give an open reallocation another target, because other jobs took its first.

        Returns False, without effect, when it is at another step than `expected`.
        """

    def record_refusal(self, reallocation_id: int, refusal: Refusal) -> None:
        """Record what Slurm refused of an open or ended reallocation; it replaces an earlier one of it."""

    def record_priority(self, reallocation_id: int, priority: int) -> None:
        """Record, before the command, that a reallocation gives its job this priority."""

    def record_priority_ended(self, reallocation_ids: Sequence[int], *, at: datetime) -> None:
        """Record, after the command, that their jobs have lost the priority that these gave them."""

    def prioritised(self) -> tuple[Reallocation, ...]:
        """Return the reallocations whose priority may last, open or ended, oldest first."""

    def open_reallocations(self) -> tuple[Reallocation, ...]:
        """Return the reallocations that have not ended, oldest first."""

    def reallocations(self, slurm_job_id: str | None = None) -> tuple[Reallocation, ...]:
        """Return all reallocations (of one job), oldest first."""


class PlannedGenerations(Protocol):
    """The memberships of jobs whose replicas join and leave, as the daemon plans and ends them."""

    def plan(
        self,
        slurm_job_id: str,
        members: Sequence[GenerationMember],
        *,
        restart_count: int,
        at: datetime,
    ) -> GenerationRecord:
        """Plan a job's next generation. It shows to the job, which takes it up once all members are ready.

        Those that train already are ready, and come first: one of them must stay. Raises `StoreError` where
        that is not so, with a member twice, and while another generation is open: end that first. Raises
        `UnknownJobError`.
        """

    def end(
        self, slurm_job_id: str, number: int, state: GenerationState, *, at: datetime, reason: str
    ) -> bool:
        """Give up a generation: a planned one as WITHDRAWN, a committed one as FAILED.

        Returns whether it is in that state, now or since an earlier call. False, without effect, when it is
        in another, or when the job is just changing it: read it again later.
        """

    def open_generations(self) -> tuple[GenerationRecord, ...]:
        """Return the planned and committed generations of jobs that are not over, in two statements."""

    def of_job(self, slurm_job_id: str) -> tuple[GenerationRecord, ...]:
        """Return all generations of a job, oldest first."""


class RecordedHistory(Protocol):
    """What is kept of one job. All are empty for an unknown one."""

    def allocations(self, slurm_job_id: str) -> tuple[AllocationRecord, ...]:
        """Return a job's allocation intervals, oldest first."""

    def runs(self, slurm_job_id: str) -> tuple[RunRecord, ...]:
        """Return a job's runs, oldest first."""

    def models(self, slurm_job_id: str) -> tuple[tuple[datetime, GoodputModel], ...]:
        """Return each model that a job has reported, with its time, oldest first."""

    def samples(self, slurm_job_id: str) -> tuple[Sample, ...]:
        """Return a job's goodput samples, oldest first."""


class Store(Protocol):
    """The API for the daemon and for people with its rights. Job ids are Slurm's, as text."""

    @property
    def lease(self) -> DaemonLease: ...

    @property
    def jobs(self) -> RegisteredJobs: ...

    @property
    def kinds(self) -> JobKinds: ...

    @property
    def rounds(self) -> RoundRecords: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def generations(self) -> PlannedGenerations: ...

    @property
    def history(self) -> RecordedHistory: ...

    @property
    def agent(self) -> JobStore:
        """The calls of any job, by its token, without the limits that hold for its own login."""

    def maintain(self) -> tuple[str, ...]:
        """Maintain the store, once a round; return notes for its admin, a line each.

        On PostgreSQL: end connections of jobs and people that last longer than any report or query, and
        restore the settings of logins that jobs share, which any of their users can change.
        """

    def close(self) -> None:
        """Close the connections."""
