"""What is known of a job by all its rows: one whose owner puts another token into its Comment gets a new one.

It is another row, since its runs are numbered anew, but the same submission: `first_id` says of which row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select, Subquery, and_, func, or_, select
from sqlalchemy.orm import aliased

from pollux_slurm.store.access.statements import is_one_of_ids
from pollux_slurm.store.schema import AllocationRow, JobRow


def is_of_submission(earlier: Any, *, job_id: Any, first_id: Any) -> ColumnElement[bool]:
    """Whether a row of jobs is that of `job_id`, or of the same submission."""
    return or_(earlier.id == job_id, earlier.id == first_id, earlier.first_id == first_id)


def ids_of_submission() -> Select[Any]:
    """Select, for a row of jobs, the ids of the rows of its submission."""
    earlier = aliased(JobRow)
    wanted = is_of_submission(earlier, job_id=JobRow.id, first_id=JobRow.first_id)
    return select(earlier.id).where(wanted).correlate(JobRow)


def newest_of_job(number: Any, job_id: Any) -> ScalarSelect[int]:
    """Select, for a row of jobs, the largest number of a history whose rows bear that `job_id`."""
    return select(func.max(number)).where(job_id == JobRow.id).correlate(JobRow).scalar_subquery()


def last_of_each(
    scope: Select[Any], row: Any, most: int, wanted: Callable[[Any], ColumnElement[bool]]
) -> Subquery:
    """Return (job_id, id) of the last `most` rows of each job in `scope` that are `wanted`.

    `row` is a history with an `id` that grows and a `job_id`. It is read over the whole submission.
    """
    other, row_of_it, found = aliased(row), aliased(JobRow), aliased(row)
    oldest = (
        select(other.id)
        .where(other.job_id.in_(ids_of_submission()), wanted(other))
        .order_by(other.id.desc())
        .offset(most - 1)
        .limit(1)
        .correlate(JobRow)
        .scalar_subquery()
    )
    jobs = (
        select(JobRow.id.label("job_id"), JobRow.first_id, func.coalesce(oldest, 0).label("oldest"))
        .where(JobRow.id.in_(scope))
        .subquery()
    )
    return (
        select(jobs.c.job_id, found.id)
        .select_from(jobs)
        .join(row_of_it, is_of_submission(row_of_it, job_id=jobs.c.job_id, first_id=jobs.c.first_id))
        .join(found, and_(found.job_id == row_of_it.id, found.id >= jobs.c.oldest))
        .where(wanted(found))
        .subquery()
    )


def read_stretches(connection: Connection, first_ids: Collection[int]) -> defaultdict[int, list[Any]]:
    """Return the stretches of allocation of submissions, oldest first, by the id of the first row of each."""
    rows = connection.execute(
        select(
            func.coalesce(JobRow.first_id, JobRow.id).label("first_id"),
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
                is_one_of_ids(connection, JobRow.id, first_ids),
                is_one_of_ids(connection, JobRow.first_id, first_ids),
            )
        )
        .order_by(AllocationRow.started_at, AllocationRow.job_id, AllocationRow.number)
    )
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for row in rows:
        found[row.first_id].append(row)
    return found
