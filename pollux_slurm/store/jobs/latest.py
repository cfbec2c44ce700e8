"""Read the latest row of each history of the wanted jobs: one statement per history."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Connection,
    Executable,
    ScalarSelect,
    Select,
    Subquery,
    and_,
    case,
    exists,
    func,
    select,
)
from sqlalchemy.orm import aliased

from pollux_slurm.model import Allocation, BatchChoice, GoodputModel, JobWarning
from pollux_slurm.store.access.statements import cached_statement
from pollux_slurm.store.contract.interface import RunRecord, Sample, WarningRecord
from pollux_slurm.store.jobs.goodput_models import model_of_row, select_models
from pollux_slurm.store.jobs.submissions import newest_of_job
from pollux_slurm.store.schema import (
    AllocationNodeRow,
    AllocationRow,
    CheckpointRow,
    DecisionNodeRow,
    DecisionRow,
    JobRow,
    ModelVersionRow,
    RoundRow,
    RunNodeRow,
    RunRow,
    RunWarningRow,
    SampleRow,
)

# The prediction error is over so many reports: eight minutes of them, at the default interval.
_REPORTS_IN_ERROR = 16

Scope = Select[Any]
"""A select of the wanted jobs' ids in this database."""


def read_open_allocations(connection: Connection, scope: Scope) -> defaultdict[int, dict[str, int]]:
    """Return the GPUs that each job has, by node."""
    rows = connection.execute(_select_allocations(scope))
    allocated: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for row in rows:
        allocated[row.job_id][row.node_name] = row.num_gpus
    return allocated


@cached_statement
def _select_allocations(scope: Scope) -> Executable:
    return (
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


def read_last_ends(connection: Connection, scope: Scope) -> dict[int, datetime]:
    """Return when each job's last allocation interval ended."""
    rows = connection.execute(_select_last_ends(scope))
    return {row.job_id: row.ended_at for row in rows}


@cached_statement
def _select_last_ends(scope: Scope) -> Executable:
    return (
        select(AllocationRow.job_id, func.max(AllocationRow.ended_at).label("ended_at"))
        .where(AllocationRow.job_id.in_(scope), AllocationRow.ended_at.is_not(None))
        .group_by(AllocationRow.job_id)
    )


def read_first_warnings(connection: Connection, scope: Scope) -> defaultdict[int, list[WarningRecord]]:
    """Return the warnings of each job, each with its first run."""
    known = {warning.value: warning for warning in JobWarning}
    rows = connection.execute(_select_warnings(scope))
    found: defaultdict[int, dict[JobWarning, WarningRecord]] = defaultdict(dict)
    for row in rows:
        warning = known.get(row.warning)
        if warning is not None:
            found[row.job_id].setdefault(
                warning,
                WarningRecord(warning=warning, run_number=row.run_number, first_seen_at=row.first_seen_at),
            )
    return defaultdict(list, {job_id: list(of_job.values()) for job_id, of_job in found.items()})


@cached_statement
def _select_warnings(scope: Scope) -> Executable:
    return (
        select(RunRow.job_id, RunRow.run_number, RunWarningRow.warning, RunWarningRow.first_seen_at)
        .join(RunRow, RunRow.id == RunWarningRow.run_id)
        .where(RunRow.job_id.in_(scope))
        .order_by(RunWarningRow.first_seen_at, RunRow.run_number, RunWarningRow.warning)
    )


def read_latest_models(connection: Connection, scope: Scope) -> dict[int, GoodputModel]:
    """Return each job's newest model."""
    rows = connection.execute(_select_latest_models(scope))
    return {row.job_id: model_of_row(row) for row in rows}


@cached_statement
def _select_latest_models(scope: Scope) -> Executable:
    latest = newest_of_job(ModelVersionRow.id, ModelVersionRow.job_id)
    wanted = select(latest).select_from(JobRow).where(JobRow.id.in_(scope))
    return select_models().where(ModelVersionRow.id.in_(wanted))


def read_checkpoint_sizes(connection: Connection, scope: Scope) -> dict[int, int]:
    """Return the size in bytes of the newest checkpoint of each job that has confirmed one."""
    rows = connection.execute(_select_checkpoint_sizes(scope))
    return {row.job_id: row.size_bytes for row in rows if row.size_bytes is not None}


@cached_statement
def _select_checkpoint_sizes(scope: Scope) -> Executable:
    newest = (
        select(CheckpointRow.size_bytes)
        .join(RunRow, RunRow.id == CheckpointRow.run_id)
        .where(RunRow.job_id == JobRow.id)
        .order_by(RunRow.run_number.desc(), CheckpointRow.sequence.desc())
        .limit(1)
        .correlate(JobRow)
        .scalar_subquery()
    )
    return select(JobRow.id.label("job_id"), newest.label("size_bytes")).where(JobRow.id.in_(scope))


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
    """Return the batch choice in a row, None where its three columns are null."""
    if row.global_batch_size is None:
        return None
    return BatchChoice(
        global_batch_size=row.global_batch_size,
        atomic_batch_size=row.atomic_batch_size,
        accumulation_steps=row.accumulation_steps,
    )


def sample_of_row(row: Any) -> Sample:
    """Return the sample in a row of `SAMPLE_COLUMNS`."""
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


def read_latest_samples(connection: Connection, scope: Scope) -> dict[int, Sample]:
    """Return each job's newest sample."""
    rows = connection.execute(_select_latest_samples(scope))
    return {row.job_id: sample_of_row(row) for row in rows}


@cached_statement
def _select_latest_samples(scope: Scope) -> Executable:
    runs, last = _sampled_runs(scope)
    return (
        select(runs.c.job_id, *SAMPLE_COLUMNS)
        .select_from(runs)
        .join(SampleRow, and_(SampleRow.run_id == runs.c.run_id, SampleRow.sequence == last))
    )


def read_prediction_errors(connection: Connection, scope: Scope) -> dict[int, float]:
    """Return the mean relative error of each job's last predicted throughputs."""
    rows = connection.execute(_select_prediction_errors(scope))
    return {row.job_id: row.error for row in rows}


@cached_statement
def _select_prediction_errors(scope: Scope) -> Executable:
    runs, _ = _sampled_runs(scope)
    # A job may skip sequence numbers: the last reports are found by order.
    other = aliased(SampleRow)
    oldest = (
        select(other.sequence)
        .where(other.run_id == runs.c.run_id)
        .order_by(other.sequence.desc())
        .offset(_REPORTS_IN_ERROR - 1)
        .limit(1)
        .scalar_subquery()
    )
    measured, predicted = SampleRow.throughput, SampleRow.predicted_throughput
    # Jobs may report any number above 0, and PostgreSQL raises an error when a quotient overflows.
    error = func.abs(
        case((measured < 1e-9, 1e-9), else_=measured) / case((predicted < 1e-9, 1e-9), else_=predicted) - 1.0
    )
    return (
        select(runs.c.job_id, func.avg(case((error > 1.0, 1.0), else_=error)).label("error"))
        .select_from(runs)
        .join(SampleRow, SampleRow.run_id == runs.c.run_id)
        .where(SampleRow.sequence >= func.coalesce(oldest, 0), measured.is_not(None), predicted.is_not(None))
        .group_by(runs.c.job_id)
    )


def _sampled_runs(scope: Scope) -> tuple[Subquery, ScalarSelect[Any]]:
    """Return (job_id, run_id) of each job's last run with samples, and the sequence of its last sample."""
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
    nodes, runs = _select_runs(wanted)
    for node in connection.execute(nodes):
        sizes[node.run_id].append(node.num_gpus)
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
        for row in connection.execute(runs)
    ]


@cached_statement
def _select_runs(wanted: Scope) -> tuple[Executable, Executable]:
    """Return selects of the runs' nodes, and of the runs."""
    nodes = (
        select(RunNodeRow.run_id, RunNodeRow.num_gpus)
        .where(RunNodeRow.run_id.in_(wanted))
        .order_by(RunNodeRow.run_id, RunNodeRow.node_rank)
    )
    return nodes, select(*RUN_COLUMNS).where(RunRow.id.in_(wanted)).order_by(RunRow.job_id, RunRow.run_number)


def read_current_runs(connection: Connection, scope: Scope) -> dict[int, RunRecord]:
    """Return each job's last run."""
    return dict(read_runs(connection, _select_current_runs(scope)))


@cached_statement
def _select_current_runs(scope: Scope) -> Scope:
    current = (
        select(RunRow.id)
        .where(RunRow.job_id == JobRow.id)
        .order_by(RunRow.run_number.desc())
        .limit(1)
        .correlate(JobRow)
        .scalar_subquery()
    )
    return select(current).select_from(JobRow).where(JobRow.id.in_(scope))


def read_last_decisions(connection: Connection, scope: Scope) -> dict[int, tuple[Any, Allocation]]:
    """Return each job's last decision and its allocation."""
    in_nodes, decisions = _select_last_decisions(scope)
    nodes: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for node in connection.execute(in_nodes):
        nodes[node.job_id][node.node_name] = node.num_gpus
    return {row.job_id: (row, Allocation.of(nodes[row.job_id])) for row in connection.execute(decisions)}


@cached_statement
def _select_last_decisions(scope: Scope) -> tuple[Executable, Executable]:
    """Return selects of the decisions' nodes, and of the decisions."""
    latest = newest_of_job(DecisionRow.round_id, DecisionRow.job_id)
    last = select(JobRow.id.label("job_id"), latest.label("round_id")).where(JobRow.id.in_(scope)).subquery()
    nodes = select(DecisionNodeRow.job_id, DecisionNodeRow.node_name, DecisionNodeRow.num_gpus).join(
        last,
        and_(DecisionNodeRow.job_id == last.c.job_id, DecisionNodeRow.round_id == last.c.round_id),
    )
    decisions = (
        select(DecisionRow.job_id, DecisionRow.speedup, DecisionRow.bound_by, RoundRow.at)
        .join(last, and_(DecisionRow.job_id == last.c.job_id, DecisionRow.round_id == last.c.round_id))
        .join(RoundRow, RoundRow.id == DecisionRow.round_id)
    )
    return nodes, decisions
