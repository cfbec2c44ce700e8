"""Insert jobs that the daemon found in Slurm, in a bounded number of statements."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, and_, bindparam, case, func, insert, or_, select, update

from pollux_slurm.model import JobState, ReallocationStep
from pollux_slurm.store.access.sanitizing import clean_text, utc
from pollux_slurm.store.access.statements import is_one_of, upsert
from pollux_slurm.store.contract.interface import JobRegistration
from pollux_slurm.store.journal.reallocations import ENDS
from pollux_slurm.store.schema import (
    AccountRow,
    AllocationRow,
    JobRow,
    ReallocationRow,
    ReallocationStepRow,
    UserRow,
)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_JOB_ID = re.compile(r"[0-9A-Za-z_+.-]{1,64}")
_MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    id: int
    slurm_job_id: str
    token_sha256: str
    user_id: int
    first_job_id: int | None
    min_gpus: int
    max_gpus: int | None
    allow_unconfirmed: bool
    finish_by: datetime | None
    submitted_at: datetime
    finished_at: datetime | None
    open_reallocation_id: int | None

    @property
    def is_over(self) -> bool:
        return self.finished_at is not None


def register_jobs(
    connection: Connection, jobs: Sequence[JobRegistration], *, at: datetime
) -> tuple[str, ...]:
    """Insert new jobs; return the ids left out: see `RegisteredJobs.register`."""
    at = utc(at)
    if not jobs:
        return ()
    known = _known_jobs(connection, jobs)
    newest = {entry.slurm_job_id: entry for entry in known}  # by ascending id: the newest wins
    tokens = {(entry.user_id, entry.token_sha256) for entry in known}
    new_jobs: dict[str, JobRegistration] = {}
    first_job_ids: dict[str, int] = {}
    left_out: list[str] = []
    running_again: list[int] = []
    replaced: list[tuple[_Known, JobRegistration]] = []
    changed: list[tuple[_Known, JobRegistration]] = []
    for job in jobs:
        before = newest.get(job.slurm_job_id)
        if job.slurm_job_id in new_jobs:
            continue
        if before is not None and _is_same_job(before, job):
            if before.is_over and job.is_running:
                running_again.append(before.id)
            if _has_other_terms(before, job) and _is_valid(job):
                changed.append((before, job))
            continue
        if not _is_valid(job) or (job.user_id, job.terms.token_sha256) in tokens:
            left_out.append(job.slurm_job_id)
            continue
        if before is not None and not before.is_over:
            replaced.append((before, job))
        tokens.add((job.user_id, job.terms.token_sha256))
        new_jobs[job.slurm_job_id] = job
        if before is not None and _is_same_submission(before, job):
            first_job_ids[job.slurm_job_id] = before.first_job_id or before.id
    if changed:
        _change_terms(connection, changed)
    if running_again:
        # It was requeued by hand after its end, or its Comment lacked the token for a while.
        connection.execute(
            update(JobRow)
            .where(JobRow.id.in_(running_again))
            .values(state=JobState.RUNNING, finished_at=None)
        )
    if replaced:
        _end_replaced(connection, replaced, at)
    if new_jobs:
        _insert(connection, list(new_jobs.values()), first_job_ids, at)
    return tuple(left_out)


def _is_same_job(before: _Known, job: JobRegistration) -> bool:
    """Return whether the newest recorded job with this id is the one that Slurm shows now.

    Another token means another job: slurmctld has started its ids anew, or the owner lost the token and put a
    new one into the Comment. While the job has an open reallocation, its owner's new token has to wait.
    """
    if before.user_id != job.user_id:
        return False
    if before.token_sha256 == job.terms.token_sha256:
        return True
    return not before.is_over and before.open_reallocation_id is not None


def _has_other_terms(before: _Known, job: JobRegistration) -> bool:
    """Return whether the owner of a job has changed its terms in its Comment (`pollux change`)."""
    terms = job.terms
    return before.token_sha256 == terms.token_sha256 and (
        (before.min_gpus, before.max_gpus, before.allow_unconfirmed, before.finish_by)
        != (terms.min_gpus, terms.max_gpus, terms.allow_unconfirmed, terms.finish_by)
    )


def _change_terms(connection: Connection, pairs: Sequence[tuple[_Known, JobRegistration]]) -> None:
    connection.execute(
        update(JobRow)
        .where(JobRow.id == bindparam("b_id"))
        .values(
            min_gpus=bindparam("b_min"), max_gpus=bindparam("b_max"), allow_unconfirmed=bindparam("b_leave")
        ),
        [
            {
                "b_id": before.id,
                "b_min": job.terms.min_gpus,
                "b_max": job.terms.max_gpus,
                "b_leave": job.terms.allow_unconfirmed,
            }
            for before, job in pairs
        ],
    )
    # Another moment is another request.
    moments = [pair for pair in pairs if pair[0].finish_by != pair[1].terms.finish_by]
    if moments:
        connection.execute(
            update(JobRow)
            .where(JobRow.id == bindparam("b_id"))
            .values(
                finish_by=bindparam("b_finish_by"),
                promise=None,
                promise_gpus=None,
                promise_finish_at=None,
                promise_reason=None,
            ),
            [{"b_id": before.id, "b_finish_by": job.terms.finish_by} for before, job in moments],
        )


def _is_same_submission(before: _Known, job: JobRegistration) -> bool:
    """Return whether a job with another token is of the same submission as `before`: same owner, not over.

    `before` may have been taken for over because its Comment lacked a token for a while. It is the same
    submission if it was submitted before that end, or was requeued; a reused id is neither. Only a requeue
    changes when a job was submitted.
    """
    if before.user_id != job.user_id or (
        job.restart_count == 0 and utc(job.submitted_at) > before.submitted_at
    ):
        return False
    return before.finished_at is None or utc(job.submitted_at) <= before.finished_at or job.restart_count > 0


def _end_replaced(
    connection: Connection, pairs: Sequence[tuple[_Known, JobRegistration]], at: datetime
) -> None:
    """End jobs whose id another job has now, so that nothing of theirs affects the new ones.

    A run that began before the new job's submission ended by then.
    """
    ids = [
        {"b_id": before.id, "b_at": at, "b_submitted_at": utc(after.submitted_at)} for before, after in pairs
    ]
    connection.execute(
        update(JobRow)
        .where(JobRow.id == bindparam("b_id"))
        .values(state=JobState.CANCELLED, finished_at=bindparam("b_at"), estimated=True),
        [{"b_id": entry["b_id"], "b_at": at} for entry in ids],
    )
    time_type = AllocationRow.started_at.type
    connection.execute(
        update(AllocationRow)
        .where(AllocationRow.job_id == bindparam("b_id"), AllocationRow.ended_at.is_(None))
        .values(
            ended_at=case(
                (
                    AllocationRow.started_at < bindparam("b_submitted_at"),
                    bindparam("b_submitted_at", type_=time_type),
                ),
                (AllocationRow.started_at > bindparam("b_at"), AllocationRow.started_at),
                else_=bindparam("b_at", type_=time_type),
            ),
            estimated=True,
        ),
        ids,
    )
    open_moves = [
        {"b_id": job.open_reallocation_id, "b_at": at} for job, _ in pairs if job.open_reallocation_id
    ]
    if open_moves:
        connection.execute(
            update(ReallocationRow)
            .where(ReallocationRow.id == bindparam("b_id"))
            .values(step=ReallocationStep.FAILED, reason="Slurm gave the job's id to another user's job"),
            open_moves,
        )
        connection.execute(
            insert(ReallocationStepRow),
            [
                {"reallocation_id": entry["b_id"], "step": ReallocationStep.FAILED, "at": at}
                for entry in open_moves
            ],
        )


def _known_jobs(connection: Connection, jobs: Sequence[JobRegistration]) -> list[_Known]:
    latest = (
        select(func.max(JobRow.id))
        .where(is_one_of(connection, JobRow.slurm_job_id, {job.slurm_job_id for job in jobs}))
        .group_by(JobRow.slurm_job_id)
    )
    rows = connection.execute(
        select(
            JobRow.id,
            JobRow.slurm_job_id,
            JobRow.token_sha256,
            JobRow.user_id,
            JobRow.first_job_id,
            JobRow.min_gpus,
            JobRow.max_gpus,
            JobRow.allow_unconfirmed,
            JobRow.finish_by,
            JobRow.submitted_at,
            JobRow.finished_at,
            ReallocationRow.id.label("open_reallocation_id"),
        )
        .outerjoin(
            ReallocationRow,
            and_(ReallocationRow.job_id == JobRow.id, ReallocationRow.step.not_in(ENDS)),
        )
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
            first_job_id=row.first_job_id,
            min_gpus=row.min_gpus,
            max_gpus=row.max_gpus,
            allow_unconfirmed=row.allow_unconfirmed,
            finish_by=row.finish_by,
            submitted_at=row.submitted_at,
            finished_at=row.finished_at,
            open_reallocation_id=row.open_reallocation_id,
        )
        for row in rows
    ]


def _is_valid(job: JobRegistration) -> bool:
    terms = job.terms
    max_gpus = _MAX_INT if terms.max_gpus is None else terms.max_gpus
    return (
        terms.user_id == job.user_id
        and _SHA256.fullmatch(terms.token_sha256) is not None
        and _JOB_ID.fullmatch(job.slurm_job_id) is not None
        and 1 <= terms.min_gpus <= max_gpus <= _MAX_INT
        and 0 <= job.cpus_per_gpu <= _MAX_INT
        and 0 <= job.memory_per_gpu_mb <= 2**62
        and 0 <= job.user_id <= 2**32
        and (job.time_limit_s is None or 0 <= job.time_limit_s <= _MAX_INT * 60)
    )


def _insert(
    connection: Connection, jobs: Sequence[JobRegistration], first_job_ids: Mapping[str, int], at: datetime
) -> None:
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
        upsert(connection, AccountRow).on_conflict_do_nothing(),
        [{"account": name, "first_seen_at": at} for name in {clean_text(job.account): None for job in jobs}],
    )
    connection.execute(
        insert(JobRow),
        [
            {
                "slurm_job_id": job.slurm_job_id,
                "first_job_id": first_job_ids.get(job.slurm_job_id),
                "token_sha256": job.terms.token_sha256,
                "user_id": job.user_id,
                "name": clean_text(job.name),
                "account": clean_text(job.account),
                "partition": clean_text(job.partition),
                "min_gpus": job.terms.min_gpus,
                "max_gpus": job.terms.max_gpus,
                "allow_unconfirmed": job.terms.allow_unconfirmed,
                "in_place": job.terms.in_place,
                "kind": job.terms.kind,
                "finish_by": job.terms.finish_by,
                "cpus_per_gpu": job.cpus_per_gpu,
                "memory_per_gpu_mb": job.memory_per_gpu_mb,
                "state": JobState.PENDING,
                "submitted_at": utc(job.submitted_at),
                "registered_at": at,
                "time_limit_s": job.time_limit_s,
                "submitted_gpus": job.submitted_gpus,
                "required_nodes": clean_text(",".join(job.required_nodes)) or None,
            }
            for job in jobs
        ],
    )
