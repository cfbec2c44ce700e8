"""What each job's last runs made, and on what: what the models that it reports are held against.

What a job may choose, such as the numbers of its reports or whether they tell of a throughput, decides
nothing here. What it held is looked up by time: a run may tell of any start and size.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

from sqlalchemy import Connection, Executable, Select, and_, func, or_, select
from sqlalchemy.orm import aliased

from pollux_slurm.model import Configuration
from pollux_slurm.store.access.statements import built_once
from pollux_slurm.store.contract.interface import LEAST_RUN_S, RUNS_JUDGED, Pace
from pollux_slurm.store.jobs.submissions import last_of_each
from pollux_slurm.store.schema import AllocationNodeRow, AllocationRow, RunRow, SampleRow


def read_paces(connection: Connection, scope: Select[Any]) -> defaultdict[int, list[Pace]]:
    """Return what the last runs of each job made, and on what, newest first."""
    rows = connection.execute(_select_stretches(scope, connection.dialect.name))
    paces: defaultdict[int, list[Pace]] = defaultdict(list)
    for (job_id, _), stretches in itertools.groupby(rows, lambda row: (row.job_id, row.run_id)):
        held = []
        for row in stretches:
            until = min(row.ended_at or row.last_report_at, row.last_report_at)
            held_s = (until - max(row.started_at, row.at)).total_seconds()
            held.append((Configuration(num_nodes=row.num_nodes, num_gpus=row.num_gpus), held_s))
        paces[job_id].append(Pace(row.made, tuple(held), row.gpu_type))
    return paces


@built_once
def _select_stretches(scope: Select[Any], dialect: str) -> Executable:
    def reported_long(run: Any) -> Any:
        if dialect == "postgresql":
            took_s: Any = func.extract("epoch", run.last_report_at - run.first_report_at)
        else:
            took_s = (func.julianday(run.last_report_at) - func.julianday(run.first_report_at)) * 86400.0
        return took_s >= LEAST_RUN_S

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

    runs = last_of_each(scope, RunRow, RUNS_JUDGED, reported_long)
    first, last = aliased(SampleRow), aliased(SampleRow)
    return (
        select(
            runs.c.job_id,
            runs.c.id.label("run_id"),
            RunRow.gpu_type,
            RunRow.last_report_at,
            first.at,
            (last.progress - first.progress).label("made"),
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
