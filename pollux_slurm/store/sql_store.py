"""`Store` over one database: the functions of this package, by subject, each in a transaction of its own."""

from __future__ import annotations

from datetime import datetime

from pollux_slurm.errors import StoreError
from pollux_slurm.model import Decision, Problem
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.long_connections import end_long_connections
from pollux_slurm.store.access.opening import check_schema
from pollux_slurm.store.access.parts import StorePart, reading, writing
from pollux_slurm.store.agent_api.postgresql_api import TrustedPostgresqlAgentStore
from pollux_slurm.store.agent_api.sqlite_api import SqliteAgentStore
from pollux_slurm.store.contract.interface import JobStore
from pollux_slurm.store.jobs import (
    accounting_corrections,
    earlier_jobs,
    history,
    observation,
    records,
    registration,
)
from pollux_slurm.store.journal import generations, reallocations
from pollux_slurm.store.rounds import daily_sums, explanations, lease, rounds, used_gpus
from pollux_slurm.store.security.shared_logins import changed_logins, mend_login


class SqlLease(StorePart):
    """See `contract.interface.DaemonLease`."""

    # Another release may have upgraded the store while the daemon acts, or waits.
    acquire = writing(lease.acquire_lease, check=check_schema)
    is_held_by = reading(lease.holds_lease)
    daemon_status = reading(lease.daemon_status)
    release = writing(lease.release_lease)


class SqlJobs(StorePart):
    """See `contract.interface.RegisteredJobs`."""

    register = writing(registration.register_jobs)
    observe = writing(observation.observe_jobs)
    record_not_moved = writing(observation.record_not_moved)
    record_promises = writing(observation.record_promises)
    record_fitting = writing(observation.record_fitting)
    estimated = reading(accounting_corrections.estimated_jobs)
    correct_estimated = writing(accounting_corrections.correct_estimated_jobs)
    active = reading(records.read_active_jobs)
    all = reading(records.read_all_jobs)
    get = reading(records.read_job)
    training_runs = reading(records.read_training_runs)
    used_gpus = reading(used_gpus.read_used_gpus)


class SqlKinds(StorePart):
    """See `contract.interface.JobKinds`."""

    all = reading(earlier_jobs.read_kinds)
    forget = writing(earlier_jobs.forget_kind)
    earlier_jobs = reading(earlier_jobs.read_earlier_jobs)


class SqlRounds(StorePart):
    """See `contract.interface.RoundRecords`."""

    problem = reading(rounds.read_round)
    nodes = reading(rounds.read_nodes)
    decision = reading(explanations.read_decision)

    def record(self, problem: Problem, decision: Decision, *, shadow: bool, at: datetime) -> int:
        # What takes long is made before the transaction begins.
        texts, one_gpu = rounds.round_texts(problem, decision), daily_sums.one_gpu_goodputs(problem)
        with self._database.write() as connection:
            return rounds.record_round(
                connection, problem, decision, texts=texts, one_gpu=one_gpu, shadow=shadow, at=at
            )


class SqlJournal(StorePart):
    """See `contract.interface.Journal`."""

    plan = writing(reallocations.plan_reallocation)
    advance = writing(reallocations.advance_reallocation)
    request_regroup = writing(reallocations.request_regroup)
    retarget = writing(reallocations.retarget_reallocation)
    record_refusal = writing(reallocations.record_refusal)
    record_priority = writing(reallocations.record_priority)
    record_priority_ended = writing(reallocations.record_priority_ended)
    prioritised = reading(reallocations.read_prioritised)
    open_reallocations = reading(reallocations.read_open)
    reallocations = reading(reallocations.read_all)


class SqlGenerations(StorePart):
    """See `contract.interface.PlannedGenerations`."""

    plan = writing(generations.plan_generation)
    end = writing(generations.end_generation)
    open_generations = reading(generations.read_open)
    of_job = reading(generations.read_of_job)


class SqlHistory(StorePart):
    """See `contract.interface.RecordedHistory`."""

    allocations = reading(history.read_allocations)
    runs = reading(history.read_run_history)
    models = reading(history.read_models)
    samples = reading(history.read_samples)


class SqlStore:
    """The API for the daemon. `contract.interface.Store` documents it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._is_postgresql = database.engine.dialect.name == "postgresql"
        self.lease = SqlLease(database)
        self.jobs = SqlJobs(database)
        self.kinds = SqlKinds(database)
        self.rounds = SqlRounds(database)
        self.journal = SqlJournal(database)
        self.generations = SqlGenerations(database)
        self.history = SqlHistory(database)
        self.agent: JobStore = (
            TrustedPostgresqlAgentStore(database)
            if self._is_postgresql
            else SqliteAgentStore(database, limited=False)
        )

    def maintain(self) -> tuple[str, ...]:
        if not self._is_postgresql:
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

    def close(self) -> None:
        self.database.close()
