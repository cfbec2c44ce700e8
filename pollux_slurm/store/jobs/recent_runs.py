"""The last runs of each job: their progress and allocations, which the daemon compares with its models.

A job chooses its report numbers, and whether a report has a throughput, so neither is used here. What GPUs it
had is looked up by time, because a run may report any start and size.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

from sqlalchemy import Connection, Executable, Select, and_, func, or_, select
from sqlalchemy.orm import aliased

from pollux_slurm.model import Configuration
from pollux_slurm.store.access.statements import cached_statement
from pollux_slurm.store.contract.interface import MIN_RECENT_RUN_S, RECENT_RUNS, RecentRun
from pollux_slurm.store.jobs.submissions import last_of_each
from pollux_slurm.store.schema import AllocationNodeRow, AllocationRow, RunRow, SampleRow


def read_recent_runs(connection: Connection, scope: Select[Any]) -> defaultdict[int, list[RecentRun]]:
    """Return the last runs of each job, newest first."""
    rows = connection.execute(_select_run_intervals(scope, connection.dialect.name))
    recent_runs: defaultdict[int, list[RecentRun]] = defaultdict(list)
    for (job_id, _), intervals in itertools.groupby(rows, lambda row: (row.job_id, row.run_id)):
        allocations = []
        for row in intervals:
            until = min(row.ended_at or row.last_report_at, row.last_report_at)
            allocated_s = (until - max(row.started_at, row.at)).total_seconds()
            allocations.append((Configuration(num_nodes=row.num_nodes, num_gpus=row.num_gpus), allocated_s))
        recent_runs[job_id].append(RecentRun(row.progress, tuple(allocations), row.gpu_type))
    return recent_runs


@cached_statement
def _select_run_intervals(scope: Select[Any], dialect: str) -> Executable:
    def reported_long_enough(run: Any) -> Any:
        if dialect == "postgresql":
            reported_s: Any = func.extract("epoch", run.last_report_at - run.first_report_at)
        else:
            reported_s = (func.julianday(run.last_report_at) - func.julianday(run.first_report_at)) * 86400.0
        return reported_s >= MIN_RECENT_RUN_S

    def sequence(end: Any) -> Any:
        other = aliased(SampleRow)
        return select(end(other.sequence)).where(other.run_id == RunRow.id).scalar_subquery()

    def nodes(counted: Any) -> Any:
        return (
            select(counted)
            .where(
                AllocationNodeRow.job_id == AllocationRow.job_id,
                AllocationNodeRow.number == AllocationRow.number,
            )
            .scalar_subquery()
        )

    runs = last_of_each(scope, RunRow, RECENT_RUNS, reported_long_enough)
    first, last = aliased(SampleRow), aliased(SampleRow)
    return (
        select(
            runs.c.job_id,
            runs.c.id.label("run_id"),
            RunRow.gpu_type,
            RunRow.last_report_at,
            first.at,
            (last.progress - first.progress).label("progress"),
            AllocationRow.started_at,
            AllocationRow.ended_at,
            nodes(func.count()).label("num_nodes"),
            nodes(func.sum(AllocationNodeRow.num_gpus)).label("num_gpus"),
        )
        .select_from(runs)
        .join(RunRow, RunRow.id == runs.c.id)
        .join(first, and_(first.run_id == RunRow.id, first.sequence == sequence(func.min)))
        .join(last, and_(last.run_id == RunRow.id, last.sequence == sequence(func.max)))
        .join(
            AllocationRow,
            and_(
                AllocationRow.job_id == RunRow.job_id,
                AllocationRow.started_at < RunRow.last_report_at,
                or_(AllocationRow.ended_at.is_(None), AllocationRow.ended_at > first.at),
            ),
        )
        .order_by(runs.c.job_id, runs.c.id.desc(), AllocationRow.number)
    )
