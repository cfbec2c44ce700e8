"""Enter jobs that the daemon found in Slurm, in a bounded number of statements."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, insert, or_, select, update

from pollux_slurm.model import JobState
from pollux_slurm.store.clean import clean_text, utc
from pollux_slurm.store.contract import JobRegistration
from pollux_slurm.store.schema import JobRow, UserRow
from pollux_slurm.store.statements import is_one_of, upsert

_SHA256 = re.compile(r"[0-9a-f]{64}")
_JOB_ID = re.compile(r"[0-9A-Za-z_+.-]{1,64}")
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    id: int
    slurm_job_id: str
    token_sha256: str
    user_id: int
    is_over: bool


def register_jobs(
    connection: Connection, jobs: Sequence[JobRegistration], *, at: datetime
) -> tuple[str, ...]:
    """Insert newcomers; return the ids left out: see `Store.register_jobs`.

    Left out are those whose token another job has, and those with terms that no job can have. slurmctld's
    numbers begin anew one day: a number whose job is over, or belonged to another user, is a new job's when
    it comes with another token.
    """
    at = utc(at)
    if not jobs:
        return ()
    known = _known_jobs(connection, jobs)
    newest: dict[str, _Known] = {}
    for entry in known:  # ascending ids: the newest bearer of a number stays
        newest[entry.slurm_job_id] = entry
    bearers = {entry.token_sha256: entry.slurm_job_id for entry in known}
    newcomers: list[JobRegistration] = []
    left_out: list[str] = []
    superseded: list[int] = []
    seen: set[str] = set()
    for job in jobs:
        if job.slurm_job_id in seen:
            continue
        seen.add(job.slurm_job_id)
        before = newest.get(job.slurm_job_id)
        if before is not None and before.token_sha256 == job.terms.token_sha256:
            continue
        if before is not None and not before.is_over and before.user_id == job.user_id:
            continue
        if not _is_possible(job) or job.terms.token_sha256 in bearers:
            left_out.append(job.slurm_job_id)
            continue
        if before is not None and not before.is_over:
            superseded.append(before.id)
        bearers[job.terms.token_sha256] = job.slurm_job_id
        newcomers.append(job)
    if superseded:
        connection.execute(
            update(JobRow).where(JobRow.id.in_(superseded)).values(state=JobState.CANCELLED, finished_at=at)
        )
    if newcomers:
        _insert(connection, newcomers, at)
    return tuple(left_out)


def _known_jobs(connection: Connection, jobs: Sequence[JobRegistration]) -> list[_Known]:
    latest = (
        select(func.max(JobRow.id))
        .where(is_one_of(connection, JobRow.slurm_job_id, {job.slurm_job_id for job in jobs}))
        .group_by(JobRow.slurm_job_id)
    )
    rows = connection.execute(
        select(JobRow.id, JobRow.slurm_job_id, JobRow.token_sha256, JobRow.user_id, JobRow.finished_at)
        .where(
            or_(
                JobRow.id.in_(latest),
                is_one_of(connection, JobRow.token_sha256, {job.terms.token_sha256 for job in jobs}),
            )
        )
        .order_by(JobRow.id)
    )
    return [
        _Known(
            id=row.id,
            slurm_job_id=row.slurm_job_id,
            token_sha256=row.token_sha256,
            user_id=row.user_id,
            is_over=row.finished_at is not None,
        )
        for row in rows
    ]


def _is_possible(job: JobRegistration) -> bool:
    terms = job.terms
    most = _MOST if terms.max_gpus is None else terms.max_gpus
    return (
        _SHA256.fullmatch(terms.token_sha256) is not None
        and _JOB_ID.fullmatch(job.slurm_job_id) is not None
        and 1 <= terms.min_gpus <= most <= _MOST
        and 0 <= job.cpus_per_gpu <= _MOST
        and 0 <= job.memory_per_gpu_mb <= 2**62
        and 0 <= job.user_id <= 2**32
    )


def _insert(connection: Connection, jobs: Sequence[JobRegistration], at: datetime) -> None:
    users = upsert(connection, UserRow)
    connection.execute(
        users.on_conflict_do_update(
            index_elements=[UserRow.user_id], set_={"user_name": users.excluded.user_name}
        ),
        [
            {"user_id": user_id, "user_name": name}
            for user_id, name in {job.user_id: clean_text(job.user_name) for job in jobs}.items()
        ],
    )
    connection.execute(
        insert(JobRow),
        [
            {
                "slurm_job_id": job.slurm_job_id,
                "token_sha256": job.terms.token_sha256,
                "user_id": job.user_id,
                "name": clean_text(job.name),
                "account": clean_text(job.account),
                "partition": clean_text(job.partition),
                "min_gpus": job.terms.min_gpus,
                "max_gpus": job.terms.max_gpus,
                "allow_unconfirmed": job.terms.allow_unconfirmed,
                "cpus_per_gpu": job.cpus_per_gpu,
                "memory_per_gpu_mb": job.memory_per_gpu_mb,
                "state": JobState.PENDING,
                "submitted_at": utc(job.submitted_at),
                "registered_at": at,
            }
            for job in jobs
        ],
    )
