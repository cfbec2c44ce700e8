"""Read jobs with all that a round needs of them, in a number of statements that does not grow with them.

Each statement asks one question about all wanted jobs at once; "the latest" of a history is found by its
index, job by job inside the database, never by reading the history.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, ScalarSelect, Select, Subquery, and_, case, exists, func, select
from sqlalchemy.orm import aliased

from pollux_slurm.errors import UnknownJobError
from pollux_slurm.model import Allocation, BatchChoice, GoodputModel, JobTerms, JobWarning
from pollux_slurm.store.clean import clean_text
from pollux_slurm.store.contract import (
    JobRecord,
    Milestone,
    RunPhase,
    RunRecord,
    Sample,
    WarningRecord,
)
from pollux_slurm.store.declarations import read_declarations
from pollux_slurm.store.models import model_of_row, read_models_by_type, select_models
from pollux_slurm.store.moves import read_last_reallocations, read_restart_delays, read_unanswered
from pollux_slurm.store.paces import read_paces
from pollux_slurm.store.schema import (
    AllocationNodeRow,
    AllocationRow,
    DecisionNodeRow,
    DecisionRow,
    JobRow,
    ModelVersionRow,
    RoundRow,
    RunNodeRow,
    RunRow,
    RunWarningRow,
    SampleRow,
    UserRow,
)

# Predictions are judged by so many reports: eight minutes of them, at the usual interval.
_REPORTS_COMPARED = 16

Scope = Select[Any]
"""A select of the wanted jobs' ids in this database."""


def active_scope() -> Scope:
    """Select the jobs that are not over."""
    return select(JobRow.id).where(JobRow.finished_at.is_(None))


def newest_scope(slurm_job_id: str) -> Scope:
    """Select the newest job with this number, if there is one: slurmctld may start its numbers anew."""
    return select(func.max(JobRow.id)).where(JobRow.slurm_job_id == clean_text(slurm_job_id))


def read_job(connection: Connection, slurm_job_id: str) -> JobRecord:
    """Return the newest job with this number; raises `UnknownJobError`."""
    records = read_jobs(connection, newest_scope(slurm_job_id))
    if not records:
        raise UnknownJobError(f"job {slurm_job_id} is not known as an adaptive job; see: pollux status --all")
    return records[0]


def read_jobs(connection: Connection, scope: Scope) -> tuple[JobRecord, ...]:
    """Return the jobs in `scope`, oldest first."""
    _plan_by_index(connection)
    first = aliased(JobRow)
    rows = connection.execute(
        select(
            JobRow.id,
            JobRow.slurm_job_id,
            JobRow.token_sha256,
            JobRow.user_id,
            JobRow.min_gpus,
            JobRow.max_gpus,
            JobRow.allow_unconfirmed,
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
            JobRow.left_out_because,
            first.submitted_at.label("first_submitted_at"),
        )
        .outerjoin(first, first.id == JobRow.first_id)
        .join(UserRow, UserRow.user_id == JobRow.user_id)
        .where(JobRow.id.in_(scope))
        .order_by(JobRow.id)
    ).all()
    if not rows:
        return ()
    allocations = _open_allocations(connection, scope)
    models = _latest_models(connection, scope)
    samples = _latest_samples(connection, scope)
    errors = _prediction_errors(connection, scope)
    paces = read_paces(connection, scope)
    runs = _current_runs(connection, scope)
    reallocations = read_last_reallocations(connection, scope)
    delays = read_restart_delays(connection, scope)
    unanswered = read_unanswered(connection, scope)
    decisions = _last_decisions(connection, scope)
    by_type = read_models_by_type(connection, scope)
    declarations = read_declarations(connection, scope)
    held_until = _ends_of_last_stretch(connection, scope)
    warnings = _first_warnings(connection, scope)
    records = []
    for row in rows:
        num_restarts, costs = delays.get(row.id, (0, ()))
        known = [delay for delay in costs if delay is not None]
        decided, decision = decisions.get(row.id, (None, None))
        last = reallocations.get(row.id)
        records.append(
            JobRecord(
                slurm_job_id=row.slurm_job_id,
                terms=JobTerms(
                    token_sha256=row.token_sha256,
                    user_id=row.user_id,
                    min_gpus=row.min_gpus,
                    max_gpus=row.max_gpus,
                    allow_unconfirmed=row.allow_unconfirmed,
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
                mean_restart_delay_s=sum(known) / len(known) if known else None,
                last_decision=decision,
                last_decision_speedup=decided.speedup if decided else None,
                last_decision_bound_by=decided.bound_by if decided else None,
                last_decision_at=decided.at if decided else None,
                models=tuple(by_type[row.id]),
                declarations=tuple(declarations[row.id]),
                last_held_at=None if allocations[row.id] else held_until.get(row.id),
                last_reallocation=last,
                granted_time_limit_s=row.time_limit_s,
                warnings=tuple(warnings[row.id]),
                required_nodes=tuple(row.required_nodes.split(",")) if row.required_nodes else (),
                left_out_because=row.left_out_because,
                prediction_error=errors.get(row.id, 0.0),
                unanswered=tuple(unanswered[row.id]),
                paces=tuple(paces[row.id]),
                first_submitted_at=row.first_submitted_at,
            )
        )
    return tuple(records)


def _plan_by_index(connection: Connection) -> None:
    """Let PostgreSQL enter every history by its index, in this transaction.

    After a start, or many new rows, its statistics say that the tables are all but empty: it then compares
    every row of a history with every job, in seconds instead of milliseconds, until ANALYZE has run.
    """
    if connection.dialect.name == "postgresql":
        # Without sequential scans costs look large, for which the compiler would be started, too.
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off; SET LOCAL jit = off")


def _open_allocations(connection: Connection, scope: Scope) -> defaultdict[int, dict[str, int]]:
    rows = connection.execute(
        select(AllocationNodeRow.job_id, AllocationNodeRow.node_name, AllocationNodeRow.num_gpus)
        .join(
            AllocationRow,
            and_(
                AllocationRow.job_id == AllocationNodeRow.job_id,
                AllocationRow.number == AllocationNodeRow.number,
            ),
        )
        .where(AllocationRow.ended_at.is_(None), AllocationRow.job_id.in_(scope))
    )
    held: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for row in rows:
        held[row.job_id][row.node_name] = row.num_gpus
    return held


def _ends_of_last_stretch(connection: Connection, scope: Scope) -> dict[int, datetime]:
    rows = connection.execute(
        select(AllocationRow.job_id, func.max(AllocationRow.ended_at).label("ended_at"))
        .where(AllocationRow.job_id.in_(scope), AllocationRow.ended_at.is_not(None))
        .group_by(AllocationRow.job_id)
    )
    return {row.job_id: row.ended_at for row in rows}


def _first_warnings(connection: Connection, scope: Scope) -> defaultdict[int, list[WarningRecord]]:
    known = {warning.value: warning for warning in JobWarning}
    rows = connection.execute(
        select(RunRow.job_id, RunRow.run_number, RunWarningRow.warning, RunWarningRow.first_seen_at)
        .join(RunRow, RunRow.id == RunWarningRow.run_id)
        .where(RunRow.job_id.in_(scope))
        .order_by(RunWarningRow.first_seen_at, RunRow.run_number, RunWarningRow.warning)
    )
    found: defaultdict[int, dict[JobWarning, WarningRecord]] = defaultdict(dict)
    for row in rows:
        warning = known.get(row.warning)
        if warning is not None:
            found[row.job_id].setdefault(
                warning,
                WarningRecord(warning=warning, run_number=row.run_number, first_seen_at=row.first_seen_at),
            )
    return defaultdict(list, {job_id: list(of_job.values()) for job_id, of_job in found.items()})


def _latest_models(connection: Connection, scope: Scope) -> dict[int, GoodputModel]:
    latest = (
        select(func.max(ModelVersionRow.id))
        .where(ModelVersionRow.job_id == JobRow.id)
        .correlate(JobRow)
        .scalar_subquery()
    )
    wanted = select(latest).select_from(JobRow).where(JobRow.id.in_(scope))
    rows = connection.execute(select_models().where(ModelVersionRow.id.in_(wanted)))
    return {row.job_id: model_of_row(row) for row in rows}


def read_milestones(connection: Connection) -> frozenset[Milestone]:
    """Return what the current runs of jobs have come to: see `Store.milestones`."""
    later = aliased(RunRow)
    measured = exists().where(
        ModelVersionRow.job_id == RunRow.job_id,
        ModelVersionRow.run_number == RunRow.run_number,
        ModelVersionRow.alpha_g.is_not(None),
    )
    rows = connection.execute(
        select(JobRow.slurm_job_id, RunRow.run_number, measured.label("is_measured"))
        .join(RunRow, RunRow.job_id == JobRow.id)
        .where(
            JobRow.finished_at.is_(None),
            RunRow.num_steps > 0,
            RunRow.phase == RunPhase.TRAINING,
            ~exists().where(later.job_id == RunRow.job_id, later.run_number > RunRow.run_number),
        )
    )
    return frozenset(Milestone(row.slurm_job_id, row.run_number, bool(row.is_measured)) for row in rows)


SAMPLE_COLUMNS = (
    SampleRow.at,
    SampleRow.global_batch_size,
    SampleRow.atomic_batch_size,
    SampleRow.accumulation_steps,
    SampleRow.throughput,
    SampleRow.predicted_throughput,
    SampleRow.efficiency,
    SampleRow.progress,
    SampleRow.epoch,
    SampleRow.total_epochs,
)


def batch_of_row(row: Any) -> BatchChoice | None:
    """Return the batch in a row with the three columns of one, None where they are empty."""
    if row.global_batch_size is None:
        return None
    return BatchChoice(
        global_batch_size=row.global_batch_size,
        atomic_batch_size=row.atomic_batch_size,
        accumulation_steps=row.accumulation_steps,
    )


def sample_of_row(row: Any) -> Sample:
    """Return the sample that a row of `SAMPLE_COLUMNS` holds."""
    return Sample(
        at=row.at,
        batch=batch_of_row(row),
        throughput=row.throughput,
        predicted_throughput=row.predicted_throughput,
        efficiency=row.efficiency,
        progress=row.progress,
        epoch=row.epoch,
        total_epochs=row.total_epochs,
    )


def _latest_samples(connection: Connection, scope: Scope) -> dict[int, Sample]:
    runs, last = _sampled_runs(scope)
    rows = connection.execute(
        select(runs.c.job_id, *SAMPLE_COLUMNS)
        .select_from(runs)
        .join(SampleRow, and_(SampleRow.run_id == runs.c.run_id, SampleRow.sequence == last))
    )
    return {row.job_id: sample_of_row(row) for row in rows}


def _prediction_errors(connection: Connection, scope: Scope) -> dict[int, float]:
    runs, _ = _sampled_runs(scope)
    # Whatever numbers its reports bear, these are the last.
    other = aliased(SampleRow)
    oldest = (
        select(other.sequence)
        .where(other.run_id == runs.c.run_id)
        .order_by(other.sequence.desc())
        .offset(_REPORTS_COMPARED - 1)
        .limit(1)
        .scalar_subquery()
    )
    measured, predicted = SampleRow.throughput, SampleRow.predicted_throughput
    # Jobs may report any number above 0, and PostgreSQL refuses a quotient that has no double.
    error = func.abs(
        case((measured < 1e-9, 1e-9), else_=measured) / case((predicted < 1e-9, 1e-9), else_=predicted) - 1.0
    )
    rows = connection.execute(
        select(runs.c.job_id, func.avg(case((error > 1.0, 1.0), else_=error)).label("error"))
        .select_from(runs)
        .join(SampleRow, SampleRow.run_id == runs.c.run_id)
        .where(SampleRow.sequence >= func.coalesce(oldest, 0), measured.is_not(None), predicted.is_not(None))
        .group_by(runs.c.job_id)
    )
    return {row.job_id: row.error for row in rows}


def _sampled_runs(scope: Scope) -> tuple[Subquery, ScalarSelect[Any]]:
    """Return (job_id, run_id) of the last run of each job that has samples, and its last sample's sequence.

    A run that has just started has none.
    """
    run = (
        select(RunRow.id)
        .where(RunRow.job_id == JobRow.id, exists().where(SampleRow.run_id == RunRow.id))
        .order_by(RunRow.run_number.desc())
        .limit(1)
        .correlate(JobRow)
        .scalar_subquery()
    )
    runs = select(JobRow.id.label("job_id"), run.label("run_id")).where(JobRow.id.in_(scope)).subquery()
    other = aliased(SampleRow)
    return runs, select(func.max(other.sequence)).where(other.run_id == runs.c.run_id).scalar_subquery()


RUN_COLUMNS = (
    RunRow.id,
    RunRow.job_id,
    RunRow.run_number,
    RunRow.restart_count,
    RunRow.phase,
    RunRow.first_report_at,
    RunRow.last_report_at,
    RunRow.first_step_s,
    RunRow.restore_s,
    RunRow.num_steps,
)


def read_runs(connection: Connection, wanted: Scope) -> list[tuple[int, RunRecord]]:
    """Return (job id, run) of the runs whose ids `wanted` selects, oldest first."""
    sizes: defaultdict[int, list[int]] = defaultdict(list)
    for node in connection.execute(
        select(RunNodeRow.run_id, RunNodeRow.num_gpus)
        .where(RunNodeRow.run_id.in_(wanted))
        .order_by(RunNodeRow.run_id, RunNodeRow.node_rank)
    ):
        sizes[node.run_id].append(node.num_gpus)
    rows = connection.execute(
        select(*RUN_COLUMNS).where(RunRow.id.in_(wanted)).order_by(RunRow.job_id, RunRow.run_number)
    )
    return [
        (
            row.job_id,
            RunRecord(
                run_number=row.run_number,
                restart_count=row.restart_count,
                phase=row.phase,
                gpus_per_node=tuple(sizes[row.id]),
                first_report_at=row.first_report_at,
                last_report_at=row.last_report_at,
                first_step_s=row.first_step_s,
                restore_s=row.restore_s,
                num_steps=row.num_steps,
            ),
        )
        for row in rows
    ]


def _current_runs(connection: Connection, scope: Scope) -> dict[int, RunRecord]:
    current = (
        select(RunRow.id)
        .where(RunRow.job_id == JobRow.id)
        .order_by(RunRow.run_number.desc())
        .limit(1)
        .correlate(JobRow)
        .scalar_subquery()
    )
    return dict(read_runs(connection, select(current).select_from(JobRow).where(JobRow.id.in_(scope))))


def _last_decisions(connection: Connection, scope: Scope) -> dict[int, tuple[Any, Allocation]]:
    latest = (
        select(func.max(DecisionRow.round_id))
        .where(DecisionRow.job_id == JobRow.id)
        .correlate(JobRow)
        .scalar_subquery()
    )
    last = select(JobRow.id.label("job_id"), latest.label("round_id")).where(JobRow.id.in_(scope)).subquery()
    nodes: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for node in connection.execute(
        select(DecisionNodeRow.job_id, DecisionNodeRow.node_name, DecisionNodeRow.num_gpus).join(
            last,
            and_(DecisionNodeRow.job_id == last.c.job_id, DecisionNodeRow.round_id == last.c.round_id),
        )
    ):
        nodes[node.job_id][node.node_name] = node.num_gpus
    rows = connection.execute(
        select(DecisionRow.job_id, DecisionRow.speedup, DecisionRow.bound_by, RoundRow.at)
        .join(last, and_(DecisionRow.job_id == last.c.job_id, DecisionRow.round_id == last.c.round_id))
        .join(RoundRow, RoundRow.id == DecisionRow.round_id)
    )
    return {row.job_id: (row, Allocation.of(nodes[row.job_id])) for row in rows}
