"""Correct estimated allocation intervals from the runs in Slurm's accounting database.

slurmctld shows only the last run of a job, and drops the job MinJobAge after its end; slurmdbd keeps every
run. Exact intervals are not changed. Nor are jobs that move in place: their GPUs are in other jobs, and
slurmdbd does not say in which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, exists, func, insert, or_, select, update
from sqlalchemy.orm import aliased

from pollux_slurm.model import AccountedRun, Allocation
from pollux_slurm.store.access.sanitizing import utc
from pollux_slurm.store.access.statements import is_one_of
from pollux_slurm.store.jobs.observation import node_rows
from pollux_slurm.store.jobs.submissions import read_intervals
from pollux_slurm.store.schema import AllocationDayRow, AllocationNodeRow, AllocationRow, JobRow

# A job id may have been another job's before this one's submission. Slurm's times are whole seconds.
_SUBMISSION_TOLERANCE = timedelta(seconds=1)


def estimated_jobs(connection: Connection, *, since: datetime) -> tuple[tuple[str, datetime], ...]:
    """Return the jobs with estimated intervals: see `RegisteredJobs.estimated`."""
    later = aliased(JobRow)
    rows = connection.execute(
        select(JobRow.slurm_job_id, JobRow.submitted_at)
        .where(
            JobRow.estimated,
            ~JobRow.in_place,
            or_(JobRow.finished_at.is_(None), JobRow.finished_at > utc(since)),
            # Slurm's records of a job id are those of its newest job.
            ~exists().where(later.slurm_job_id == JobRow.slurm_job_id, later.id > JobRow.id),
        )
        .order_by(JobRow.id.desc())
    )
    return tuple((row.slurm_job_id, row.submitted_at) for row in rows)


def correct_estimated_jobs(connection: Connection, runs: Sequence[AccountedRun]) -> tuple[str, ...]:
    """Correct estimated intervals: see `RegisteredJobs.correct_estimated`."""
    of_job: defaultdict[str, list[AccountedRun]] = defaultdict(list)
    for run in runs:
        of_job[run.slurm_job_id].append(run)
    newest = (
        select(func.max(JobRow.id))
        .where(is_one_of(connection, JobRow.slurm_job_id, of_job))
        .group_by(JobRow.slurm_job_id)
    )
    jobs = connection.execute(
        select(
            JobRow.id,
            JobRow.slurm_job_id,
            func.coalesce(JobRow.first_job_id, JobRow.id).label("first_job_id"),
            JobRow.submitted_at,
            JobRow.finished_at,
        ).where(JobRow.id.in_(newest), JobRow.estimated, ~JobRow.in_place)
    ).all()
    intervals = read_intervals(connection, [job.first_job_id for job in jobs])
    corrected = []
    for job in jobs:
        since = job.submitted_at - _SUBMISSION_TOLERANCE
        accounted = [
            run for run in of_job[job.slurm_job_id] if run.started_at is None or run.started_at >= since
        ]
        accounted.sort(key=lambda run: (run.started_at is None, run.started_at or since))
        if _correct_job(connection, job, accounted, intervals[job.first_job_id]):
            corrected.append(job.slurm_job_id)
    return tuple(corrected)


def _correct_job(
    connection: Connection, job: Any, accounted: Sequence[AccountedRun], known: Sequence[Any]
) -> bool:
    """Correct one job; return whether it is now exact."""
    began = [run for run in accounted if run.started_at is not None and run.nodes]
    is_exact = True
    number = max((interval.number for interval in known if interval.job_id == job.id), default=-1)
    for place, run in enumerate(began):
        until = began[place + 1].started_at if place + 1 < len(began) else None
        of_run = [interval for interval in known if _is_within(interval, run.started_at, until)]
        if not of_run and run.ended_at is not None:
            number += 1
            restarts = sum(one.state is not None for one in began[:place])
            is_exact &= _insert_run(connection, job.id, number, run, restarts)
        elif any(interval.estimated for interval in of_run):
            is_exact &= _correct_intervals(connection, run, of_run)
    counts = [interval.restart_count for interval in known if interval.restart_count is not None]
    is_exact &= len(began) > max(counts, default=-1)
    last = accounted[-1] if accounted else None
    changes: dict[str, Any] = {}
    if began:
        changes["started_at"] = began[0].started_at
    if job.finished_at is not None:
        if last is None or last.state is None or not last.state.is_over or last.ended_at is None:
            is_exact = False
        else:
            changes |= {"state": last.state, "finished_at": last.ended_at}
    if is_exact and last is not None:
        connection.execute(update(JobRow).where(JobRow.id == job.id).values(estimated=False, **changes))
    return is_exact and last is not None


def _is_within(interval: Any, since: datetime | None, until: datetime | None) -> bool:
    return bool(
        (since is None or interval.started_at >= since) and (until is None or interval.started_at < until)
    )


def _insert_run(connection: Connection, job_id: int, number: int, run: AccountedRun, restarts: int) -> bool:
    """Insert a run that no round observed; False where the database lacks its GPUs."""
    if not run.num_gpus or run.started_at is None:
        return run.num_gpus == 0
    connection.execute(
        insert(AllocationRow).values(
            job_id=job_id,
            number=number,
            started_at=run.started_at,
            ended_at=run.started_at + timedelta(seconds=run.elapsed_s),
            restart_count=restarts,
        )
    )
    connection.execute(
        insert(AllocationNodeRow), node_rows(job_id, number, spread_evenly(run.num_gpus, run.nodes))
    )
    return True


def _correct_intervals(connection: Connection, run: AccountedRun, of_run: Sequence[Any]) -> bool:
    """Make the intervals of a run add up to what Slurm counts; False while the run lasts."""
    if any(interval.ended_at is None for interval in of_run):
        return True  # the current run, which a round will end
    if run.ended_at is None:
        return False
    *others, last = of_run
    spent_s = sum((other.ended_at - other.started_at).total_seconds() for other in others)
    ended_at = last.started_at + timedelta(seconds=max(run.elapsed_s - spent_s, 0.0))
    connection.execute(delete(AllocationDayRow).where(*_key_of(AllocationDayRow, last)))
    connection.execute(update(AllocationRow).where(*_key_of(AllocationRow, last)).values(ended_at=ended_at))
    for interval in of_run:
        connection.execute(
            update(AllocationRow).where(*_key_of(AllocationRow, interval)).values(estimated=False)
        )
    return True


def _key_of(row: Any, interval: Any) -> tuple[ColumnElement[bool], ...]:
    return row.job_id == interval.job_id, row.number == interval.number


def spread_evenly(num_gpus: int, nodes: Sequence[str]) -> Allocation:
    """Return `num_gpus` spread evenly over nodes: accounting has only their sum."""
    least, more = divmod(num_gpus, len(nodes))
    return Allocation.of({node: least + (place < more) for place, node in enumerate(nodes)})
