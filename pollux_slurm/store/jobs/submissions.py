"""The rows of one submission: a job whose owner puts a new token into its Comment gets a new row.

The new row numbers its runs anew. Its `first_job_id` names the first row of the submission.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select, Subquery, and_, func, or_, select
from sqlalchemy.orm import aliased

from pollux_slurm.store.access.statements import is_one_of_ids
from pollux_slurm.store.schema import AllocationRow, JobRow


def is_of_submission(earlier: Any, *, job_id: Any, first_job_id: Any) -> ColumnElement[bool]:
    """Return the condition that the row `earlier` is of the same submission as the given one."""
    return or_(earlier.id == job_id, earlier.id == first_job_id, earlier.first_job_id == first_job_id)


def ids_of_submission() -> Select[Any]:
    """Select, for a row of jobs, the ids of the rows of its submission."""
    earlier = aliased(JobRow)
    wanted = is_of_submission(earlier, job_id=JobRow.id, first_job_id=JobRow.first_job_id)
    return select(earlier.id).where(wanted).correlate(JobRow)


def newest_of_job(number: Any, job_id: Any) -> ScalarSelect[int]:
    """Select, for a row of jobs, the largest `number` of its rows in a history."""
    return select(func.max(number)).where(job_id == JobRow.id).correlate(JobRow).scalar_subquery()


def last_of_each(
    scope: Select[Any], row: Any, max_rows: int, wanted: Callable[[Any], ColumnElement[bool]]
) -> Subquery:
    """Return (job_id, id) of the last `max_rows` rows of each job in `scope` that are `wanted`.

    `row` is a history with an increasing `id` and a `job_id`. The rows of the whole submission count.
    """
    other, member, found = aliased(row), aliased(JobRow), aliased(row)
    oldest = (
        select(other.id)
        .where(other.job_id.in_(ids_of_submission()), wanted(other))
        .order_by(other.id.desc())
        .offset(max_rows - 1)
        .limit(1)
        .correlate(JobRow)
        .scalar_subquery()
    )
    jobs = (
        select(JobRow.id.label("job_id"), JobRow.first_job_id, func.coalesce(oldest, 0).label("oldest"))
        .where(JobRow.id.in_(scope))
        .subquery()
    )
    return (
        select(jobs.c.job_id, found.id)
        .select_from(jobs)
        .join(member, is_of_submission(member, job_id=jobs.c.job_id, first_job_id=jobs.c.first_job_id))
        .join(found, and_(found.job_id == member.id, found.id >= jobs.c.oldest))
        .where(wanted(found))
        .subquery()
    )


def read_intervals(connection: Connection, first_job_ids: Collection[int]) -> defaultdict[int, list[Any]]:
    """Return the allocation intervals of submissions, oldest first, by the id of each first row."""
    rows = connection.execute(
        select(
            func.coalesce(JobRow.first_job_id, JobRow.id).label("first_job_id"),
            AllocationRow.job_id,
            AllocationRow.number,
            AllocationRow.started_at,
            AllocationRow.ended_at,
            AllocationRow.restart_count,
            AllocationRow.estimated,
        )
        .join(JobRow, JobRow.id == AllocationRow.job_id)
        .where(
            or_(
                is_one_of_ids(connection, JobRow.id, first_job_ids),
                is_one_of_ids(connection, JobRow.first_job_id, first_job_ids),
            )
        )
        .order_by(AllocationRow.started_at, AllocationRow.job_id, AllocationRow.number)
    )
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for row in rows:
        found[row.first_job_id].append(row)
    return found
