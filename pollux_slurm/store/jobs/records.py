"""Read jobs with all that a round needs of them, in a bounded number of statements.

Each statement reads one history for all wanted jobs. The latest row of a history is found by its index, per
job, inside the database, without reading the history.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, Executable, exists, select
from sqlalchemy.orm import aliased

from pollux_slurm.errors import UnknownJobError
from pollux_slurm.model import Allocation, JobTerms
from pollux_slurm.store.access.statements import cached_statement, newest_job
from pollux_slurm.store.contract.interface import JobRecord, PromiseRecord, RunPhase, TrainingRun
from pollux_slurm.store.jobs.declarations import read_declarations
from pollux_slurm.store.jobs.goodput_models import read_models_by_type
from pollux_slurm.store.jobs.latest import (
    Scope,
    read_checkpoint_sizes,
    read_current_runs,
    read_first_warnings,
    read_last_decisions,
    read_last_ends,
    read_latest_models,
    read_latest_samples,
    read_open_allocations,
    read_prediction_errors,
)
from pollux_slurm.store.jobs.past_moves import (
    read_last_reallocations,
    read_refusals,
    read_regroup_costs,
    read_restart_delays,
    read_unanswered,
)
from pollux_slurm.store.jobs.recent_runs import read_recent_runs
from pollux_slurm.store.journal.generations import read_latest_generations
from pollux_slurm.store.schema import JobRow, ModelVersionRow, RunRow, UserRow

_ALL_JOBS: Scope = select(JobRow.id)
_ACTIVE_JOBS: Scope = select(JobRow.id).where(JobRow.finished_at.is_(None))
"""The jobs that are not over."""


def read_job(connection: Connection, slurm_job_id: str) -> JobRecord:
    """Return the newest job with this Slurm job id; raises `UnknownJobError`."""
    records = _read_jobs(connection, newest_job(slurm_job_id))
    if not records:
        raise UnknownJobError(f"job {slurm_job_id} is not known as an adaptive job; see: pollux status --all")
    return records[0]


def read_active_jobs(connection: Connection) -> tuple[JobRecord, ...]:
    """Return the jobs that are not over, oldest first."""
    return _read_jobs(connection, _ACTIVE_JOBS)


def read_all_jobs(connection: Connection, *, include_finished: bool = True) -> tuple[JobRecord, ...]:
    """Return jobs, oldest first."""
    return _read_jobs(connection, _ALL_JOBS if include_finished else _ACTIVE_JOBS)


def _read_jobs(connection: Connection, scope: Scope) -> tuple[JobRecord, ...]:
    """Return the jobs in `scope`, oldest first."""
    force_index_scans(connection)
    rows = connection.execute(_select_jobs(scope)).all()
    if not rows:
        return ()
    allocations = read_open_allocations(connection, scope)
    models = read_latest_models(connection, scope)
    samples = read_latest_samples(connection, scope)
    errors = read_prediction_errors(connection, scope)
    recent_runs = read_recent_runs(connection, scope)
    runs = read_current_runs(connection, scope)
    reallocations = read_last_reallocations(connection, scope)
    delays = read_restart_delays(connection, scope)
    regroups = read_regroup_costs(connection, scope)
    unanswered = read_unanswered(connection, scope)
    refusals = read_refusals(connection, scope)
    decisions = read_last_decisions(connection, scope)
    by_type = read_models_by_type(connection, scope)
    declarations = read_declarations(connection, scope)
    last_ends = read_last_ends(connection, scope)
    warnings = read_first_warnings(connection, scope)
    checkpoint_bytes = read_checkpoint_sizes(connection, scope)
    generations = read_latest_generations(connection, scope)
    records = []
    for row in rows:
        num_restarts, costs = delays.get(row.id, (0, ()))
        decided, decision = decisions.get(row.id, (None, None))
        costs_in_place, last = regroups[row.id], reallocations.get(row.id)
        records.append(
            JobRecord(
                slurm_job_id=row.slurm_job_id,
                terms=JobTerms(
                    token_sha256=row.token_sha256,
                    user_id=row.user_id,
                    min_gpus=row.min_gpus,
                    max_gpus=row.max_gpus,
                    allow_unconfirmed=row.allow_unconfirmed,
                    in_place=row.in_place,
                    kind=row.kind,
                    finish_by=row.finish_by,
                ),
                name=row.name,
                user_name=row.user_name,
                account=row.account,
                partition=row.partition,
                cpus_per_gpu=row.cpus_per_gpu,
                memory_per_gpu_mb=row.memory_per_gpu_mb,
                state=row.state,
                submitted_at=row.submitted_at,
                started_at=row.started_at,
                finished_at=row.finished_at,
                allocation=Allocation.of(allocations[row.id]),
                model=models.get(row.id),
                sample=samples.get(row.id),
                run=runs.get(row.id),
                open_reallocation=last if last is not None and not last.step.is_end else None,
                num_restarts=num_restarts,
                mean_restart_delay_s=mean_of_known(costs),
                mean_standstill_s=mean_of_known([cost.standstill_s for cost in costs_in_place]),
                mean_warm_up_s=mean_of_known([cost.warm_up_s for cost in costs_in_place]),
                last_decision=decision,
                last_decision_speedup=decided.speedup if decided else None,
                last_decision_bound_by=decided.bound_by if decided else None,
                last_decision_at=decided.at if decided else None,
                models=tuple(by_type[row.id]),
                declarations=tuple(declarations[row.id]),
                last_allocated_at=None if allocations[row.id] else last_ends.get(row.id),
                last_reallocation=last,
                granted_time_limit_s=row.time_limit_s,
                warnings=tuple(warnings[row.id]),
                checkpoint_bytes=checkpoint_bytes.get(row.id),
                required_nodes=tuple(row.required_nodes.split(",")) if row.required_nodes else (),
                not_moved_reason=row.not_moved_reason,
                prediction_error=errors.get(row.id, 0.0),
                unanswered=tuple(unanswered[row.id]),
                refusals=tuple(refusals[row.id]),
                submitted_gpus=row.submitted_gpus,
                recent_runs=tuple(recent_runs[row.id]),
                first_submitted_at=row.first_submitted_at,
                promise=None
                if row.promise is None
                else PromiseRecord(
                    state=row.promise,
                    least_gpus=row.promise_gpus,
                    finish_at=row.promise_finish_at,
                    reason=row.promise_reason,
                ),
                fitting_atomic=row.fitting_atomic,
                generations=tuple(generations[row.id]),
            )
        )
    return tuple(records)


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known, None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@cached_statement
def _select_jobs(scope: Scope) -> Executable:
    first = aliased(JobRow)
    return (
        select(
            JobRow.id,
            JobRow.slurm_job_id,
            JobRow.token_sha256,
            JobRow.user_id,
            JobRow.min_gpus,
            JobRow.max_gpus,
            JobRow.allow_unconfirmed,
            JobRow.in_place,
            JobRow.kind,
            JobRow.name,
            UserRow.user_name,
            JobRow.account,
            JobRow.partition,
            JobRow.cpus_per_gpu,
            JobRow.memory_per_gpu_mb,
            JobRow.state,
            JobRow.submitted_at,
            JobRow.started_at,
            JobRow.finished_at,
            JobRow.time_limit_s,
            JobRow.required_nodes,
            JobRow.submitted_gpus,
            JobRow.not_moved_reason,
            JobRow.finish_by,
            JobRow.promise,
            JobRow.promise_gpus,
            JobRow.promise_finish_at,
            JobRow.promise_reason,
            JobRow.fitting_atomic,
            first.submitted_at.label("first_submitted_at"),
        )
        .outerjoin(first, first.id == JobRow.first_job_id)
        .join(UserRow, UserRow.user_id == JobRow.user_id)
        .where(JobRow.id.in_(scope))
        .order_by(JobRow.id)
    )


def force_index_scans(connection: Connection) -> None:
    """Make PostgreSQL read every history by its index, in this transaction.

    Until ANALYZE has run, as after many new rows, its statistics show nearly empty tables. It then joins each
    row of a history with each job, which takes seconds instead of milliseconds.
    """
    if connection.dialect.name == "postgresql":
        # Without sequential scans the estimated costs are high enough to start the JIT compiler.
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off; SET LOCAL jit = off")


def read_training_runs(connection: Connection) -> frozenset[TrainingRun]:
    """Return the current runs that train: see `RegisteredJobs.training_runs`."""
    later = aliased(RunRow)
    measured = exists().where(
        ModelVersionRow.job_id == RunRow.job_id,
        ModelVersionRow.run_number == RunRow.run_number,
        ModelVersionRow.alpha_g.is_not(None),
    )
    rows = connection.execute(
        select(JobRow.slurm_job_id, RunRow.run_number, measured.label("has_throughput_fit"))
        .join(RunRow, RunRow.job_id == JobRow.id)
        .where(
            JobRow.finished_at.is_(None),
            RunRow.num_steps > 0,
            RunRow.phase == RunPhase.TRAINING,
            ~exists().where(later.job_id == RunRow.job_id, later.run_number > RunRow.run_number),
        )
    )
    return frozenset(
        TrainingRun(row.slurm_job_id, row.run_number, bool(row.has_throughput_fit)) for row in rows
    )
