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
  rows: a round reads and writes in fewer than sixty (`tests/store/access/test_statements.py` holds each
  number). On PostgreSQL a job, and all running jobs of a user together, may report so often at once and so
  often a second, and are then told `ReportRateError`; a job that was not seen to run, or on fewer nodes
  than it tells of, is not known yet (`UnknownJobError`). Nobody waits for a lock that a job holds. In SQLite,
  whoever may report may write the file itself.
- **History is kept.** Models, samples, allocations, reallocations, rounds are appended; only `prune` deletes.

Two doors: `AgentStore` is all that a job may do; `Store` is the daemon's and the readers'.
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
)
from pollux_slurm.store.contract.types import (
    LEAST_RUN_S,
    MAX_DECLARATIONS,
    RUNS_JUDGED,
    AllocationRecord,
    CheckpointConfirmation,
    DaemonSeen,
    DecisionRecord,
    Declaration,
    JobObservation,
    JobRecord,
    JobRegistration,
    Milestone,
    Move,
    Pace,
    Poll,
    Reallocation,
    Report,
    RunPhase,
    RunRecord,
    Sample,
    UnansweredRequest,
    WarningRecord,
)

__all__ = [
    "LEAST_RUN_S",
    "MAX_DECLARATIONS",
    "RUNS_JUDGED",
    "AgentStore",
    "AllocationRecord",
    "CheckpointConfirmation",
    "DaemonSeen",
    "DecisionRecord",
    "Declaration",
    "JobObservation",
    "JobRecord",
    "JobRegistration",
    "Milestone",
    "Move",
    "Pace",
    "Poll",
    "Reallocation",
    "Report",
    "RunPhase",
    "RunRecord",
    "Sample",
    "Store",
    "UnansweredRequest",
    "WarningRecord",
]


class AgentStore(Protocol):
    """All that a job may do: three calls, each with the job's own token."""

    def report(self, token: str, report: Report, *, at: datetime) -> None:
        """Record a report.

        Raises `UnknownJobError`, `StaleRunError`, `ReportRefusedError`, `StoreUnavailable`; on PostgreSQL its
        kind `ReportRateError`, too.
        A confirmation for a reallocation in CHECKPOINT_REQUESTED moves it to CHECKPOINTED in the same
        transaction; one that asks for nothing any more is recorded with the run only.
        """

    def poll(self, token: str, run_number: int, *, at: datetime) -> Poll:
        """Return what the job should do. Raises `UnknownJobError`, `StaleRunError`, `StoreUnavailable`."""

    def move(self, token: str, request_id: int) -> Move | None:
        """Return what this reallocation of the job moves; None where it has no such one.

        Raises `UnknownJobError`, `StoreUnavailable`.
        """

    def close(self) -> None:
        """Give back the connections."""


class Store(AgentStore, Protocol):
    """The daemon's and the readers' door. Job ids are Slurm's numbers as text."""

    # lease (invariant 10)
    def acquire_lease(
        self,
        owner: str,
        *,
        ttl_s: float,
        at: datetime,
        interval_s: float | None = None,
        watch_s: float | None = None,
    ) -> bool:
        """Take or prolong the daemon's lease; False while another owner's has not run out.

        `interval_s` and `watch_s` are what `daemon_seen` tells of the daemon's pace.
        """

    def holds_lease(self, owner: str, *, at: datetime) -> bool:
        """Tell whether `owner` holds the lease at this moment."""

    def daemon_seen(self) -> DaemonSeen:
        """Return who took the lease last, even if it ran out, and when a round last decided."""

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
        user's ends as FAILED. Of the same submission, restarts, delays, requests that were not answered and
        declarations count on, and of a run in its midst each bearer has a part of its own.
        """

    def observe_jobs(self, observations: Sequence[JobObservation], *, at: datetime) -> None:
        """Record state and allocation of registered jobs, in a bounded number of statements.

        Unknown ids are ignored. Stretches of history follow Slurm's runs, by Slurm's own times: another run,
        or a changed allocation, closes the open stretch and opens another. What Slurm does not tell to a
        second is marked as estimated. A job that is over gets its end time, its open allocation closed, and
        its token stops working.
        """

    def estimated_jobs(self, *, since: datetime) -> tuple[tuple[str, datetime], ...]:
        """Return the jobs of whose runs a part is estimated, newest first, with when they were submitted.

        Those that ended before `since` are left out.
        """

    def settle_jobs(self, runs: Sequence[AccountedRun]) -> tuple[str, ...]:
        """Correct what is estimated of jobs by what Slurm's accounting database has of their runs.

        What is known is left as it is. Returns the ids of the jobs of which nothing is estimated any more.
        """

    def note_left_out(self, reasons: Mapping[str, str]) -> None:
        """Record why the last round left jobs out; what was said of others that are not over is forgotten."""

    def active_jobs(self) -> tuple[JobRecord, ...]:
        """Return every job that is not over, in a bounded number of statements."""

    def jobs(self, *, include_finished: bool = True) -> tuple[JobRecord, ...]:
        """Return jobs, oldest first."""

    def job(self, slurm_job_id: str) -> JobRecord:
        """Return one job; raises `UnknownJobError`."""

    def milestones(self) -> frozenset[Milestone]:
        """Return what the current runs of the jobs that are not over have come to, by one small statement.

        A run that has not told of a step is not there; nor is one that waits to be stopped, or is finished.
        """

    # housekeeping
    def tend(self) -> tuple[str, ...]:
        """Do what keeps the store well, once a round; return what its admin should know of, a line each.

        On PostgreSQL: end connections of jobs and people that last longer than any report or question, and
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
        cause: ReallocationCause = ReallocationCause.DECISION,
        reason: str | None = None,
    ) -> Reallocation:
        """Journal a new reallocation in PLANNED. A job has at most one open: a second raises `StoreError`.

        `reason` says for people why it is planned, where no round decided so.
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
        checkpoint_waived: bool = False,
        trained_on: bool = False,
        job_failed: bool = False,
        taken_over: bool = False,
    ) -> bool:
        """Move from `expected` to `step`; False, without effect, when it is no longer at `expected`, or when
        the job is just confirming its checkpoint (then another look tells).

        `reason` replaces the text of before. What is true of a reallocation once stays true.

        True as well when it already is at `step` (the call was repeated). Steps only go on, and nothing
        follows an end: any other move raises `StoreError`.
        """

    def retarget_reallocation(
        self, reallocation_id: int, target: Allocation, *, expected: ReallocationStep, reason: str
    ) -> bool:
        """Give an open reallocation another target, since others took its first, and say so; False, without
        effect, when it is no longer at `expected`.
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
