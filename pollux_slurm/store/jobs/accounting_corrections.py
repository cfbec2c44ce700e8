"""Correct what is estimated of jobs' runs by what Slurm's accounting database has of them.

slurmctld tells of the last run of a job only, and forgets the job MinJobAge after its end; slurmdbd keeps
every run. Only jobs of which something is estimated are touched, and of those only what is.
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
from pollux_slurm.store.jobs.submissions import read_stretches
from pollux_slurm.store.schema import AllocationDayRow, AllocationNodeRow, AllocationRow, JobRow

# A job's number may have belonged to another before it was submitted; Slurm's times are whole seconds.
_SUBMITTED_WITHIN = timedelta(seconds=1)


def estimated_jobs(connection: Connection, *, since: datetime) -> tuple[tuple[str, datetime], ...]:
    """Return the jobs of which a part is estimated: see `Store.estimated_jobs`."""
    later = aliased(JobRow)
    rows = connection.execute(
        select(JobRow.slurm_job_id, JobRow.submitted_at)
        .where(
            JobRow.estimated,
            or_(JobRow.finished_at.is_(None), JobRow.finished_at > utc(since)),
            # What Slurm tells of a number is told of its newest bearer.
            ~exists().where(later.slurm_job_id == JobRow.slurm_job_id, later.id > JobRow.id),
        )
        .order_by(JobRow.id.desc())
    )
    return tuple((row.slurm_job_id, row.submitted_at) for row in rows)


def settle_jobs(connection: Connection, runs: Sequence[AccountedRun]) -> tuple[str, ...]:
    """Correct what is estimated of jobs: see `Store.settle_jobs`."""
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
            func.coalesce(JobRow.first_id, JobRow.id).label("first_id"),
            JobRow.submitted_at,
            JobRow.finished_at,
        ).where(JobRow.id.in_(newest), JobRow.estimated)
    ).all()
    stretches = read_stretches(connection, [job.first_id for job in jobs])
    settled = []
    for job in jobs:
        since = job.submitted_at - _SUBMITTED_WITHIN
        told = [run for run in of_job[job.slurm_job_id] if run.started_at is None or run.started_at >= since]
        told.sort(key=lambda run: (run.started_at is None, run.started_at or since))
        if _settle(connection, job, told, stretches[job.first_id]):
            settled.append(job.slurm_job_id)
    return tuple(settled)


def _settle(connection: Connection, job: Any, told: Sequence[AccountedRun], known: Sequence[Any]) -> bool:
    """Correct one job; return whether nothing of it is estimated any more."""
    began = [run for run in told if run.started_at is not None and run.nodes]
    is_whole = True
    number = max((stretch.number for stretch in known if stretch.job_id == job.id), default=-1)
    for place, run in enumerate(began):
        until = began[place + 1].started_at if place + 1 < len(began) else None
        own = [stretch for stretch in known if _is_within(stretch, run.started_at, until)]
        if not own and run.ended_at is not None:
            number += 1
            restarts = sum(one.state is not None for one in began[:place])
            is_whole &= _insert(connection, job.id, number, run, restarts)
        elif any(stretch.estimated for stretch in own):
            is_whole &= _correct(connection, run, own)
    counts = [stretch.restart_count for stretch in known if stretch.restart_count is not None]
    is_whole &= len(began) > max(counts, default=-1)
    last = told[-1] if told else None
    changes: dict[str, Any] = {}
    if began:
        changes["started_at"] = began[0].started_at
    if job.finished_at is not None:
        if last is None or last.state is None or not last.state.is_over or last.ended_at is None:
            is_whole = False
        else:
            changes |= {"state": last.state, "finished_at": last.ended_at}
    if is_whole and last is not None:
        connection.execute(update(JobRow).where(JobRow.id == job.id).values(estimated=False, **changes))
    return is_whole and last is not None


def _is_within(stretch: Any, since: datetime | None, until: datetime | None) -> bool:
    return bool(
        (since is None or stretch.started_at >= since) and (until is None or stretch.started_at < until)
    )


def _insert(connection: Connection, job_id: int, number: int, run: AccountedRun, restarts: int) -> bool:
    """Enter a run that nobody saw; False where the database does not tell of its GPUs."""
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
    connection.execute(insert(AllocationNodeRow), node_rows(job_id, number, shared(run.num_gpus, run.nodes)))
    return True


def _correct(connection: Connection, run: AccountedRun, own: Sequence[Any]) -> bool:
    """Let the stretches of a run add up to what Slurm counts; False while it counts on."""
    if any(stretch.ended_at is None for stretch in own):
        return True  # the present one, which a look will end
    if run.ended_at is None:
        return False
    *others, last = own
    spent_s = sum((other.ended_at - other.started_at).total_seconds() for other in others)
    ended_at = last.started_at + timedelta(seconds=max(run.elapsed_s - spent_s, 0.0))
    connection.execute(delete(AllocationDayRow).where(*_is(AllocationDayRow, last)))
    connection.execute(update(AllocationRow).where(*_is(AllocationRow, last)).values(ended_at=ended_at))
    for stretch in own:
        connection.execute(update(AllocationRow).where(*_is(AllocationRow, stretch)).values(estimated=False))
    return True


def _is(row: Any, stretch: Any) -> tuple[ColumnElement[bool], ...]:
    return row.job_id == stretch.job_id, row.number == stretch.number


def shared(num_gpus: int, nodes: Sequence[str]) -> Allocation:
    """Return so many GPUs spread evenly over nodes: accounting tells their sum only."""
    least, more = divmod(num_gpus, len(nodes))
    return Allocation.of({node: least + (place < more) for place, node in enumerate(nodes)})
