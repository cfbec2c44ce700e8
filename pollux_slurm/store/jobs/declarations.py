"""What jobs declare of their length: every total number of epochs that a job has declared is kept.

Under some objectives a job gains by declaring that it is nearly done, so the daemon compares its declarations
with what it did.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

from sqlalchemy import Connection, Executable, Select, select
from sqlalchemy.orm import aliased

from pollux_slurm.store.access.statements import cached_statement
from pollux_slurm.store.contract.interface import Declaration
from pollux_slurm.store.jobs.submissions import is_of_submission
from pollux_slurm.store.schema import DeclarationRow, JobRow


def read_declarations(connection: Connection, scope: Select[Any]) -> defaultdict[int, list[Declaration]]:
    """Return the declarations of the jobs in `scope`, by job, in the order in which they were first made.

    The same number of epochs in several rows of a submission is one declaration.
    """
    rows = connection.execute(_select_declarations(scope))
    found: defaultdict[int, dict[int, Declaration]] = defaultdict(dict)
    for row in rows:
        of_job = found[row.of_job]
        declared = Declaration(
            total_epochs=row.total_epochs,
            at=row.at,
            epoch=row.epoch,
            progress=row.progress,
            least_total_progress=row.least_total_progress,
        )
        known = of_job.setdefault(row.total_epochs, declared)
        least = [
            one.least_total_progress for one in (known, declared) if one.least_total_progress is not None
        ]
        of_job[row.total_epochs] = dataclasses.replace(known, least_total_progress=min(least, default=None))
    return defaultdict(list, {job_id: list(of_job.values()) for job_id, of_job in found.items()})


@cached_statement
def _select_declarations(scope: Select[Any]) -> Executable:
    member = aliased(JobRow)
    return (
        select(JobRow.id.label("of_job"), DeclarationRow.__table__)
        .join(member, is_of_submission(member, job_id=JobRow.id, first_job_id=JobRow.first_job_id))
        .join(DeclarationRow, DeclarationRow.job_id == member.id)
        .where(JobRow.id.in_(scope))
        .order_by(JobRow.id, DeclarationRow.job_id, DeclarationRow.number)
    )
