"""Kinds of jobs: those that can teach others of the same kind, all kinds, and forgetting one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Executable, Select, bindparam, case, column, func, select, table, update
from sqlalchemy.orm import aliased

from pollux_slurm.model import JobState
from pollux_slurm.store.access.sanitizing import clean_text
from pollux_slurm.store.access.statements import cached_statement, is_one_of_ids
from pollux_slurm.store.contract.interface import NEWEST_OF_A_KIND, EarlierJob, KindRecord
from pollux_slurm.store.jobs.goodput_models import model_of_row, read_models_by_type, select_models
from pollux_slurm.store.jobs.latest import read_latest_samples
from pollux_slurm.store.jobs.past_moves import read_regroup_costs, read_restart_delays
from pollux_slurm.store.jobs.recent_runs import read_recent_runs
from pollux_slurm.store.jobs.records import force_index_scans, mean_of_known
from pollux_slurm.store.schema import JobRow, ModelVersionRow, UserRow, UtcDateTime

_JOB_KINDS = table(
    "job_kinds",
    *map(column, ("job_id", "slurm_job_id", "name", "user_name", "state", "kind", "max_gpus_seen")),
    column("submitted_at", UtcDateTime),
)
"""The reporting view of jobs that have a kind: `sql/views/job_kinds.sql`."""


def read_earlier_jobs(connection: Connection, *, since: datetime) -> tuple[EarlierJob, ...]:
    """Return the jobs that were submitted after `since` and can teach one that is not over, newest first."""
    force_index_scans(connection)
    rows = connection.execute(_select_jobs(), {"since": since}).all()
    if not rows:
        return ()
    scope = select(JobRow.id).where(is_one_of_ids(connection, JobRow.id, [row.id for row in rows]))
    early = {row.job_id: model_of_row(row).statistics for row in connection.execute(_first_statistics(scope))}
    models = {row.job_id: model_of_row(row) for row in connection.execute(_newest_models(scope))}
    by_type, samples = read_models_by_type(connection, scope), read_latest_samples(connection, scope)
    runs = read_recent_runs(connection, scope)
    delays, in_place = read_restart_delays(connection, scope), read_regroup_costs(connection, scope)
    return tuple(
        EarlierJob(
            slurm_job_id=row.slurm_job_id,
            user_id=row.user_id,
            account=row.account,
            kind=row.kind,
            name=row.name,
            state=row.state,
            model=models[row.id],
            models=tuple(by_type[row.id]),
            early_statistics=early.get(row.id),
            progress=samples[row.id].progress if row.id in samples else 0.0,
            recent_runs=tuple(runs[row.id]),
            mean_restart_delay_s=mean_of_known(delays[row.id][1]) if row.id in delays else None,
            mean_standstill_s=mean_of_known(cost.standstill_s for cost in in_place[row.id]),
            mean_warm_up_s=mean_of_known(cost.warm_up_s for cost in in_place[row.id]),
        )
        for row in rows
        if row.id in models
    )


@cached_statement
def _select_jobs() -> Executable:
    active = aliased(JobRow)
    kinds = select(active.kind).where(active.finished_at.is_(None), active.kind.is_not(None))
    group = (JobRow.kind, JobRow.user_id)
    # Those that are not over tell no length, and leave room for those that do.
    groups = (group, (*group, JobRow.finished_at.is_(None)))
    place, place_in_state = (
        func.row_number().over(partition_by=of, order_by=JobRow.id.desc()) for of in groups
    )
    measured = select(ModelVersionRow.id).where(
        ModelVersionRow.job_id == JobRow.id, ModelVersionRow.alpha_g.is_not(None)
    )
    numbered = (
        select(JobRow.id, JobRow.finished_at, place.label("place"), place_in_state.label("place_in_state"))
        .where(JobRow.kind.in_(kinds), JobRow.submitted_at >= bindparam("since"), measured.exists())
        .subquery()
    )
    return (
        select(
            JobRow.id,
            JobRow.slurm_job_id,
            JobRow.user_id,
            JobRow.account,
            JobRow.kind,
            JobRow.name,
            JobRow.state,
        )
        .join(numbered, numbered.c.id == JobRow.id)
        .where(
            (numbered.c.place <= NEWEST_OF_A_KIND)
            | (numbered.c.finished_at.is_not(None) & (numbered.c.place_in_state <= NEWEST_OF_A_KIND))
        )
        .order_by(JobRow.id.desc())
    )


def _first_statistics(scope: Select[Any]) -> Select[Any]:
    return _of_each(func.min, ModelVersionRow.grad_sqr, scope)


def _newest_models(scope: Select[Any]) -> Select[Any]:
    return _of_each(func.max, ModelVersionRow.alpha_g, scope)


def _of_each(end: Any, known: Any, scope: Select[Any]) -> Select[Any]:
    """Select the first or newest model of each job whose column `known` is set."""
    other = aliased(ModelVersionRow)
    found = (
        select(end(other.id))
        .where(other.job_id == JobRow.id, getattr(other, known.key).is_not(None))
        .correlate(JobRow)
        .scalar_subquery()
    )
    wanted = select(found).select_from(JobRow).where(JobRow.id.in_(scope))
    return select_models().where(ModelVersionRow.id.in_(wanted))


def read_kinds(
    connection: Connection, kind: str | None = None, *, since: datetime | None = None
) -> tuple[KindRecord, ...]:
    """Return the kinds of each user, those of the newest jobs first; or only `kind` of each user.

    Only jobs count that were submitted after `since`. They are read from a view: a person's login on
    PostgreSQL, which has no right on tables, finds the person's own jobs in it.
    """
    jobs = _JOB_KINDS.c
    wanted = [] if kind is None else [jobs.kind == clean_text(kind)]
    if since is not None:
        wanted.append(jobs.submitted_at >= since)
    place = func.row_number().over(partition_by=(jobs.kind, jobs.user_name), order_by=jobs.job_id.desc())
    numbered = select(_JOB_KINDS, place.label("place")).where(*wanted).subquery().c
    is_newest, is_completed = numbered.place == 1, numbered.state == JobState.COMPLETED.value
    rows = connection.execute(
        select(
            numbered.kind,
            numbered.user_name,
            func.count().label("num_jobs"),
            func.count(case((is_completed, 1))).label("num_completed"),
            func.max(case((is_newest, numbered.slurm_job_id))).label("newest_job"),
            func.max(case((is_newest, numbered.name))).label("newest_name"),
            func.max(numbered.max_gpus_seen).label("max_gpus_seen"),
        )
        .group_by(numbered.kind, numbered.user_name)
        .order_by(func.max(numbered.job_id).desc())
    )
    return tuple(KindRecord(**row) for row in rows.mappings())


def forget_kind(connection: Connection, kind: str, *, user_name: str | None = None) -> int:
    """Take a kind from all jobs, or those of one user; return their number."""
    wanted = update(JobRow).where(JobRow.kind == clean_text(kind)).values(kind=None)
    if user_name is not None:
        users = select(UserRow.user_id).where(UserRow.user_name == clean_text(user_name))
        wanted = wanted.where(JobRow.user_id.in_(users))
    return connection.execute(wanted).rowcount
