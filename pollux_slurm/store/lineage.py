"""What is known of a job by all its rows: one whose owner puts another token into its Comment gets a new one.

It is another row, since its runs are numbered anew, but the same submission: `first_id` says of which row.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, or_, select
from sqlalchemy.orm import aliased

from pollux_slurm.store.schema import JobRow


def is_of_submission(earlier: Any, *, job_id: Any, first_id: Any) -> ColumnElement[bool]:
    """Whether a row of jobs is that of `job_id`, or of the same submission."""
    return or_(earlier.id == job_id, earlier.id == first_id, earlier.first_id == first_id)


def ids_of_submission() -> Select[Any]:
    """Select, for a row of jobs, the ids of the rows of its submission."""
    earlier = aliased(JobRow)
    wanted = is_of_submission(earlier, job_id=JobRow.id, first_id=JobRow.first_id)
    return select(earlier.id).where(wanted).correlate(JobRow)
