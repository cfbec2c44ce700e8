"""`Store` over one database: each method is one transaction around a function of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import select

from pollux_slurm.errors import StoreError
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
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.agent_api.postgresql_api import TrustedPostgresqlAgentStore
from pollux_slurm.store.agent_api.sqlite_api import SqliteAgentStore
from pollux_slurm.store.contract.interface import (
    AllocationRecord,
    DaemonStatus,
    DecisionRecord,
    EarlierJob,
    GenerationMember,
    GenerationRecord,
    GenerationState,
    JobObservation,
    JobRecord,
    JobRegistration,
    KindRecord,
    Move,
    NodeRecord,
    Poll,
    PromiseRecord,
    Reallocation,
    Refusal,
    Report,
    RunRecord,
    Sample,
    TrainingRun,
    UsedGpus,
)
from pollux_slurm.store.jobs import accounting_corrections, earlier_jobs, observation, records, registration
from pollux_slurm.store.jobs.history import read_allocations, read_models, read_samples
from pollux_slurm.store.jobs.latest import read_runs
from pollux_slurm.store.journal import generations, reallocations
from pollux_slurm.store.rounds import daily_sums, explanations, lease, rounds
from pollux_slurm.store.rounds.used_gpus import read_used_gpus
from pollux_slurm.store.schema import GenerationRow, ReallocationRow, RunRow
from pollux_slurm.store.security.long_connections import end_long_connections
from pollux_slurm.store.security.shared_logins import changed_logins, mend_login


class SqlStore:
    """The API for the daemon. `contract.interface.Store` documents each method."""

    def __init__(self, database: Database) -> None:
        self.database = database
        is_sqlite = database.engine.dialect.name == "sqlite"
        self._agent_store = (
            SqliteAgentStore(database, limited=False) if is_sqlite else TrustedPostgresqlAgentStore(database)
        )

    def close(self) -> None:
        self.database.close()

    # the API for jobs
    def report(self, token: str, report: Report, *, at: datetime) -> None:
        self._agent_store.report(token, report, at=at)

    def poll(self, token: str, run_number: int, *, at: datetime) -> Poll:
        return self._agent_store.poll(token, run_number, at=at)

    def move(self, token: str, request_id: int) -> Move | None:
        return self._agent_store.move(token, request_id)

    def generation(self, token: str, *, after: int, restart_count: int) -> GenerationRecord | None:
        return self._agent_store.generation(token, after=after, restart_count=restart_count)

    def report_ready(self, token: str, member: str, *, number: int, restart_count: int) -> None:
        self._agent_store.report_ready(token, member, number=number, restart_count=restart_count)

    def advance_generation(
        self,
        token: str,
        number: int,
        state: GenerationState,
        *,
        restart_count: int,
        at: datetime,
        meeting: str | None = None,
        standstill_s: float | None = None,
        reason: str | None = None,
    ) -> bool:
        return self._agent_store.advance_generation(
            token,
            number,
            state,
            restart_count=restart_count,
            at=at,
            meeting=meeting,
            standstill_s=standstill_s,
            reason=reason,
        )

    # lease
    def acquire_lease(
        self,
        owner: str,
        *,
        ttl_s: float,
        at: datetime,
        interval_s: float | None = None,
        watch_s: float | None = None,
    ) -> bool:
        with self.database.write() as connection:
            return lease.acquire_lease(
                connection, owner, ttl_s=ttl_s, at=at, interval_s=interval_s, watch_s=watch_s
            )

    def holds_lease(self, owner: str, *, at: datetime) -> bool:
        with self.database.read() as connection:
            return lease.holds_lease(connection, owner, at=at)

    def daemon_status(self) -> DaemonStatus:
        with self.database.read() as connection:
            return lease.daemon_status(connection)

    def release_lease(self, owner: str) -> None:
        with self.database.write() as connection:
            lease.release_lease(connection, owner)

    # jobs
    def register_jobs(self, jobs: Sequence[JobRegistration], *, at: datetime) -> tuple[str, ...]:
        with self.database.write() as connection:
            return registration.register_jobs(connection, jobs, at=at)

    def observe_jobs(self, observations: Sequence[JobObservation], *, at: datetime) -> frozenset[str]:
        with self.database.write() as connection:
            return observation.observe_jobs(connection, observations, at=at)

    def record_not_moved(self, reasons: Mapping[str, str]) -> None:
        with self.database.write() as connection:
            observation.record_not_moved(connection, reasons)

    def record_promises(self, answers: Mapping[str, PromiseRecord]) -> None:
        if answers:
            with self.database.write() as connection:
                observation.record_promises(connection, answers)

    def estimated_jobs(self, *, since: datetime) -> tuple[tuple[str, datetime], ...]:
        with self.database.read() as connection:
            return accounting_corrections.estimated_jobs(connection, since=since)

    def correct_estimated_jobs(self, runs: Sequence[AccountedRun]) -> tuple[str, ...]:
        with self.database.write() as connection:
            return accounting_corrections.correct_estimated_jobs(connection, runs)

    def active_jobs(self) -> tuple[JobRecord, ...]:
        return self.jobs(include_finished=False)

    def earlier_jobs(self, *, since: datetime) -> tuple[EarlierJob, ...]:
        with self.database.read() as connection:
            return earlier_jobs.read_earlier_jobs(connection, since=since)

    def used_gpus(self, *, since: datetime, at: datetime) -> tuple[UsedGpus, ...]:
        with self.database.read() as connection:
            return read_used_gpus(connection, since=since, at=at)

    def kinds(self, kind: str | None = None) -> tuple[KindRecord, ...]:
        with self.database.read() as connection:
            return earlier_jobs.read_kinds(connection, kind)

    def forget_kind(self, kind: str, *, user_name: str | None = None) -> int:
        with self.database.write() as connection:
            return earlier_jobs.forget_kind(connection, kind, user_name)

    def jobs(self, *, include_finished: bool = True) -> tuple[JobRecord, ...]:
        scope = records.ALL_JOBS if include_finished else records.ACTIVE_JOBS
        with self.database.read() as connection:
            return records.read_jobs(connection, scope)

    def job(self, slurm_job_id: str) -> JobRecord:
        with self.database.read() as connection:
            return records.read_job(connection, slurm_job_id)

    def training_runs(self) -> frozenset[TrainingRun]:
        with self.database.read() as connection:
            return records.read_training_runs(connection)

    # maintenance
    def maintain(self) -> tuple[str, ...]:
        if self.database.engine.dialect.name != "postgresql":
            return ()
        with self.database.write() as connection:
            changed = changed_logins(connection)
            end_long_connections(connection)
        notes = []
        for login, databases in changed.items():
            note = (
                f"the login {login}, which jobs share, had its own settings changed: somebody tampers with it"
            )
            try:
                with self.database.write() as connection:
                    mend_login(connection, login, databases)
            except StoreError as error:  # the next round tries again; nobody who tampers stops a round
                note = f"{note}, and they could not be put right: {error}"
            notes.append(note)
        return tuple(notes)

    # rounds
    def record_round(self, problem: Problem, decision: Decision, *, shadow: bool, at: datetime) -> int:
        texts, one_gpu = rounds.round_texts(problem, decision), daily_sums.one_gpu_goodputs(problem)
        with self.database.write() as connection:
            return rounds.record_round(
                connection, problem, decision, texts=texts, one_gpu=one_gpu, shadow=shadow, at=at
            )

    def round_problem(self, round_id: int | None = None) -> tuple[Problem, Decision]:
        with self.database.read() as connection:
            return rounds.read_round(connection, round_id)

    def nodes(self) -> tuple[NodeRecord, ...]:
        with self.database.read() as connection:
            return rounds.read_nodes(connection)

    def decision(self, slurm_job_id: str, round_id: int | None = None) -> DecisionRecord | None:
        with self.database.read() as connection:
            return explanations.read_decision(connection, slurm_job_id, round_id)

    # reallocations
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
        way: ReallocationWay = ReallocationWay.REQUEUE,
    ) -> Reallocation:
        with self.database.write() as connection:
            return reallocations.plan_reallocation(
                connection,
                slurm_job_id,
                source=source,
                target=target,
                moves_running=moves_running,
                from_restart_count=from_restart_count,
                round_id=round_id,
                at=at,
                cause=cause,
                reason=reason,
                way=way,
            )

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
        continued_training: bool = False,
        job_failed: bool = False,
        taken_over: bool = False,
    ) -> bool:
        with self.database.write() as connection:
            has_advanced = reallocations.advance_reallocation(
                connection,
                reallocation_id,
                step,
                expected=expected,
                at=at,
                reason=reason,
                time_left_s=time_left_s,
                checkpoint_waived=checkpoint_waived,
                continued_training=continued_training,
                job_failed=job_failed,
                taken_over=taken_over,
            )
            if not has_advanced:  # somebody's open transaction may hold its row
                end_long_connections(connection)
            return has_advanced

    def request_regroup(
        self,
        reallocation_id: int,
        members: Sequence[GenerationMember],
        *,
        expected: ReallocationStep,
        at: datetime,
    ) -> GenerationRecord | None:
        with self.database.write() as connection:
            return reallocations.request_regroup(
                connection, reallocation_id, members, expected=expected, at=at
            )

    def retarget_reallocation(
        self, reallocation_id: int, target: Allocation, *, expected: ReallocationStep, reason: str
    ) -> bool:
        with self.database.write() as connection:
            return reallocations.retarget_reallocation(
                connection, reallocation_id, target, expected=expected, reason=reason
            )

    def record_refusal(self, reallocation_id: int, refusal: Refusal) -> None:
        with self.database.write() as connection:
            reallocations.record_refusal(connection, reallocation_id, refusal)

    def record_priority(self, reallocation_id: int, priority: int) -> None:
        with self.database.write() as connection:
            reallocations.record_priority(connection, reallocation_id, priority)

    def record_priority_ended(self, reallocation_ids: Sequence[int], *, at: datetime) -> None:
        with self.database.write() as connection:
            reallocations.record_priority_ended(connection, reallocation_ids, at=at)

    def prioritised_reallocations(self) -> tuple[Reallocation, ...]:
        with self.database.read() as connection:
            return reallocations.read_reallocations(connection, reallocations.PRIORITISED)

    def open_reallocations(self) -> tuple[Reallocation, ...]:
        with self.database.read() as connection:
            return reallocations.read_reallocations(connection, reallocations.OPEN)

    def reallocations(self, slurm_job_id: str | None = None) -> tuple[Reallocation, ...]:
        with self.database.read() as connection:
            wanted = select(ReallocationRow.id)
            if slurm_job_id is not None:
                wanted = wanted.where(ReallocationRow.job_id.in_(records.newest_scope(slurm_job_id)))
            return reallocations.read_reallocations(connection, wanted)

    # membership
    def plan_generation(
        self,
        slurm_job_id: str,
        members: Sequence[GenerationMember],
        *,
        restart_count: int,
        at: datetime,
    ) -> GenerationRecord:
        with self.database.write() as connection:
            return generations.plan_generation(
                connection, slurm_job_id, members, restart_count=restart_count, at=at
            )

    def end_generation(
        self, slurm_job_id: str, number: int, state: GenerationState, *, at: datetime, reason: str
    ) -> bool:
        with self.database.write() as connection:
            return generations.end_generation(connection, slurm_job_id, number, state, at=at, reason=reason)

    def open_generations(self) -> tuple[GenerationRecord, ...]:
        with self.database.read() as connection:
            return generations.read_generations(connection, generations.OPEN)

    def generations(self, slurm_job_id: str) -> tuple[GenerationRecord, ...]:
        wanted = GenerationRow.job_id.in_(records.newest_scope(slurm_job_id))
        with self.database.read() as connection:
            return generations.read_generations(connection, wanted)

    # history
    def allocation_history(self, slurm_job_id: str) -> tuple[AllocationRecord, ...]:
        with self.database.read() as connection:
            return read_allocations(connection, slurm_job_id)

    def run_history(self, slurm_job_id: str) -> tuple[RunRecord, ...]:
        wanted = select(RunRow.id).where(RunRow.job_id.in_(records.newest_scope(slurm_job_id)))
        with self.database.read() as connection:
            return tuple(run for _, run in read_runs(connection, wanted))

    def model_history(self, slurm_job_id: str) -> tuple[tuple[datetime, GoodputModel], ...]:
        with self.database.read() as connection:
            return read_models(connection, slurm_job_id)

    def sample_history(self, slurm_job_id: str) -> tuple[Sample, ...]:
        with self.database.read() as connection:
            return read_samples(connection, slurm_job_id)
