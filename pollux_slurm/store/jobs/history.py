"""Read one job's history: allocation intervals, models and goodput samples, oldest first."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from sqlalchemy import Connection, select

from pollux_slurm.model import Allocation, GoodputModel
from pollux_slurm.store.access.statements import newest_job
from pollux_slurm.store.contract.interface import AllocationRecord, RunRecord, Sample
from pollux_slurm.store.jobs.goodput_models import model_of_row, select_models
from pollux_slurm.store.jobs.latest import SAMPLE_COLUMNS, read_runs, sample_of_row
from pollux_slurm.store.schema import AllocationNodeRow, AllocationRow, ModelVersionRow, RunRow, SampleRow


def read_allocations(connection: Connection, slurm_job_id: str) -> tuple[AllocationRecord, ...]:
    """Return a job's allocation intervals; none for an unknown job."""
    scope = newest_job(slurm_job_id)
    nodes: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for node in connection.execute(
        select(AllocationNodeRow.number, AllocationNodeRow.node_name, AllocationNodeRow.num_gpus).where(
            AllocationNodeRow.job_id.in_(scope)
        )
    ):
        nodes[node.number][node.node_name] = node.num_gpus
    rows = connection.execute(
        select(
            AllocationRow.number,
            AllocationRow.started_at,
            AllocationRow.ended_at,
            AllocationRow.restart_count,
            AllocationRow.estimated,
        )
        .where(AllocationRow.job_id.in_(scope))
        .order_by(AllocationRow.started_at, AllocationRow.number)
    )
    return tuple(
        AllocationRecord(
            slurm_job_id=slurm_job_id,
            allocation=Allocation.of(nodes[row.number]),
            started_at=row.started_at,
            ended_at=row.ended_at,
            restart_count=row.restart_count,
            estimated=row.estimated,
        )
        for row in rows
    )


def read_run_history(connection: Connection, slurm_job_id: str) -> tuple[RunRecord, ...]:
    """Return a job's runs; none for an unknown job."""
    wanted = select(RunRow.id).where(RunRow.job_id.in_(newest_job(slurm_job_id)))
    return tuple(run for _, run in read_runs(connection, wanted))


def read_models(connection: Connection, slurm_job_id: str) -> tuple[tuple[datetime, GoodputModel], ...]:
    """Return each model of a job with its time; none for an unknown job."""
    rows = connection.execute(
        select_models()
        .add_columns(ModelVersionRow.at)
        .where(ModelVersionRow.job_id.in_(newest_job(slurm_job_id)))
        .order_by(ModelVersionRow.id)
    )
    return tuple((row.at, model_of_row(row)) for row in rows)


def read_samples(connection: Connection, slurm_job_id: str) -> tuple[Sample, ...]:
    """Return a job's goodput samples; none for an unknown job."""
    rows = connection.execute(
        select(*SAMPLE_COLUMNS)
        .join(RunRow, RunRow.id == SampleRow.run_id)
        .where(RunRow.job_id.in_(newest_job(slurm_job_id)))
        .order_by(RunRow.run_number, SampleRow.sequence)
    )
    return tuple(sample_of_row(row) for row in rows)
