"""Queries for reports: typed rows of the views in `sql/views/`, by job, account, user and time. Read-only.

The row classes are in `view_rows.py`, one per view. Every query is bounded: it returns at most `limit` rows,
and whether there were more.

    with open_view_reader("sqlite:////var/lib/pollux/pollux.db") as reports:
        for row in reports.rows(AccountUsage, since=a_month_ago, account="vision").rows:
            print(row.day, row.gpu_hours, row.progress_share)
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Date,
    Select,
    and_,
    column,
    func,
    or_,
    select,
    table,
)
from sqlalchemy.types import NullType, TypeEngine

from pollux_slurm.errors import StoreError, UnknownJobError, UsageError
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.sanitizing import clean_text
from pollux_slurm.store.jobs.latest import batch_of_row
from pollux_slurm.store.reporting.gpu_use import GpuUse, read_gpu_use
from pollux_slurm.store.reporting.shadow import ShadowReader
from pollux_slurm.store.reporting.view_rows import (
    GpuHolders,
    JobEvent,
    JobGoodput,
    NodeSum,
    NodeUsage,
    RoundEntry,
    SamplePoint,
)
from pollux_slurm.store.schema import UtcDateTime

MOST_ROWS = 100_000
"""No query returns more rows, whatever its limit."""


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Generic[Row]):
    """A result, oldest first. `truncated`: there were more rows than the limit; these are the newest."""

    rows: tuple[Row, ...]
    truncated: bool


class ViewReader:
    """Queries of the views of one store. Each query is one read-only transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def rows(
        self,
        kind: type[Row],
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        slurm_job_id: str | None = None,
        job_ids: Collection[int] | None = None,
        account: str | None = None,
        user_name: str | None = None,
        limit: int = 10_000,
    ) -> Rows[Row]:
        """Return the rows of one view (`kind` is one of `ROW_TYPES`, or `ListedJob`), from `since` up to
        before `until`.

        Each row class names its time column: the submission of jobs, the day of sums by day. A view of days
        includes the whole day of `since`, and the day of `until` unless that is midnight. `slurm_job_id`
        selects the newest job with that id, because slurmctld may start its ids anew; `job_ids` are the
        store's own. Raises `UsageError` for a condition without a column in the view, `UnknownJobError` for
        an unknown job.
        """
        with self._database.read() as connection:
            return self._read(
                connection,
                kind,
                since,
                until,
                slurm_job_id,
                job_ids,
                {"account": account, "user_name": user_name},
                limit,
            )

    def samples(self, slurm_job_id: str, *, max_points: int = 500) -> tuple[SamplePoint, ...]:
        """Return a job's goodput samples, oldest first, averaged to at most about `max_points` points.

        Empty when they were pruned, or the job has reported none.
        """
        with self._database.read() as connection:
            view = table("job_samples", *(column(name, of) for name, of in _SAMPLE_COLUMNS.items()))
            of_job = view.c.job_id == _known_job(connection, slurm_job_id)
            number = func.row_number().over(order_by=(view.c.run_number, view.c.sequence))
            numbered = select(view, number.label("number")).where(of_job).subquery()
            total = connection.execute(select(func.count()).select_from(view).where(of_job)).scalar_one()
            size = max(-(-total // max(max_points, 1)), 1)
            bucket = (numbered.c.number - 1) // size
            grouped = (
                select(
                    numbered.c.run_number,
                    func.max(numbered.c.number).label("last"),
                    func.count().label("num_samples"),
                    func.avg(numbered.c.throughput).label("throughput"),
                    func.avg(numbered.c.predicted_throughput).label("predicted_throughput"),
                    func.avg(numbered.c.efficiency).label("efficiency"),
                    func.avg(numbered.c.goodput).label("goodput"),
                )
                .group_by(numbered.c.run_number, bucket)
                .subquery()
            )
            rows = connection.execute(
                select(
                    grouped,
                    numbered.c.at,
                    numbered.c.num_gpus,
                    numbered.c.progress,
                    numbered.c.epoch,
                    numbered.c.global_batch_size,
                    numbered.c.atomic_batch_size,
                    numbered.c.accumulation_steps,
                )
                .join(numbered, numbered.c.number == grouped.c.last)
                .order_by(grouped.c.last)
            ).all()
        return tuple(_point(row) for row in rows)

    def node_sums(self, since: datetime, until: datetime) -> tuple[NodeSum, ...]:
        """Return the GPU hours of each node, by name, over the days of a range: sums of the view node_usage.

        All of the day of `since` counts, and of that of `until` unless it is midnight.
        """
        view = _table_of(NodeUsage)
        node = (view.c.node_name, view.c.gpu_type)
        query = (
            select(*node, func.sum(view.c.gpu_hours), func.sum(view.c.available_gpu_hours))
            .where(*_within(view.c.day, date, since, until))
            .group_by(*node)
            .order_by(*node)
            .limit(MOST_ROWS)
        )
        with self._database.read() as connection:
            found = connection.execute(query).all()
        return tuple(
            NodeSum(node_name=name, gpu_type=gpu_type, gpu_hours=held, available_gpu_hours=there)
            for name, gpu_type, held, there in found
        )

    def gpu_holders(
        self, since: datetime, until: datetime, *, account: str | None = None, most_jobs: int
    ) -> GpuHolders:
        """Return the jobs that held GPUs in a range, whenever they were submitted; none of too many."""
        jobs, events = _table_of(JobGoodput), _table_of(JobEvent)
        own = [] if account is None else [jobs.c.account == clean_text(account)]
        lived = select(jobs).where(
            *own, jobs.c.started_at < until, or_(jobs.c.finished_at.is_(None), jobs.c.finished_at > since)
        )
        with self._database.read() as connection:
            rows = connection.execute(
                lived.order_by(jobs.c.submitted_at, jobs.c.job_id).limit(most_jobs + 1)
            ).all()
            if len(rows) > most_jobs:
                return GpuHolders(truncated=True)
            held = connection.execute(
                select(events)
                .where(
                    events.c.job_id.in_([row.job_id for row in rows]),
                    events.c.event == "allocated",
                    events.c.at < until,
                    or_(events.c.until.is_(None), events.c.until > since),
                )
                .order_by(events.c.at, events.c.job_id)
                .limit(MOST_ROWS)
            ).all()
        intervals = tuple(JobEvent(**row._mapping) for row in held)
        holders = {one.job_id for one in intervals}
        return GpuHolders(
            jobs=tuple(JobGoodput(**row._mapping) for row in rows if row.job_id in holders),
            intervals=intervals,
        )

    def last_round_at(self) -> datetime | None:
        """Return when the last round was decided: what jobs held later, nobody saw."""
        view = _table_of(RoundEntry)
        with self._database.read() as connection:
            last = select(view.c.at).order_by(view.c.at.desc()).limit(1)
            found: datetime | None = connection.execute(last).scalar()
        return found

    def gpu_use(self, since: datetime, until: datetime) -> GpuUse:
        """Return who used which GPUs in a range of time; it needs more rights than the views."""
        return read_gpu_use(self._database, since, until)

    def shadow(self) -> ShadowReader:
        """Return the reader of shadow rounds; it needs more rights than the views."""
        return ShadowReader(self._database)

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def _read(
        self,
        connection: Connection,
        kind: type[Row],
        since: datetime | None,
        until: datetime | None,
        slurm_job_id: str | None,
        job_ids: Collection[int] | None,
        equal: dict[str, str | None],
        limit: int,
    ) -> Rows[Row]:
        types = column_types(kind)
        view: str = kind.VIEW  # type: ignore[attr-defined]
        time_column: str = kind.TIME  # type: ignore[attr-defined]
        source = _table_of(kind)
        conditions: list[ColumnElement[bool]] = []
        for name, wanted in equal.items():
            if wanted is not None:
                conditions.append(_column_of(source, view, name) == clean_text(wanted))
        if slurm_job_id is not None:
            conditions.append(_column_of(source, view, "job_id") == _known_job(connection, slurm_job_id))
        if job_ids is not None:
            conditions.append(_column_of(source, view, "job_id").in_(job_ids))
        moment = source.c[time_column]
        conditions += _within(moment, types[time_column][1], since, until)
        wanted_rows = min(max(limit, 1), MOST_ROWS)
        order = [
            moment,
            *(source.c[name] for name in ("job_id", "rank", "node_name", "round_id") if name in types),
        ]
        query: Select[Any] = (
            select(source)
            .where(and_(True, *conditions))
            .order_by(*(c.desc() for c in order))
            .limit(wanted_rows + 1)
        )
        found = connection.execute(query).all()
        rows = tuple(kind(**dict(zip(types, row, strict=True))) for row in reversed(found[:wanted_rows]))
        return Rows(rows=rows, truncated=len(found) > wanted_rows)


@contextmanager
def open_view_reader(url: str) -> Iterator[ViewReader]:
    """Open a store for reports; raises what `pollux_slurm.store.open_store` does."""
    from pollux_slurm.store.access.opening import open_database

    reports = ViewReader(open_database(url))
    try:
        yield reports
    finally:
        reports.close()


def column_types(kind: type[Any]) -> dict[str, tuple[TypeEngine[Any], type]]:
    """Return, per field of a row class, the SQL type by which it is read, and its Python type."""
    hints = typing.get_type_hints(kind)
    found: dict[str, tuple[TypeEngine[Any], type]] = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if isinstance(hint, types.UnionType):
            (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
        found[field.name] = (_READ_AS.get(hint, NullType)(), hint)
    return found


_READ_AS: dict[type, type[TypeEngine[Any]]] = {datetime: UtcDateTime, date: Date, bool: Boolean}


_SAMPLE_COLUMNS: dict[str, TypeEngine[Any]] = {
    **dict.fromkeys(("job_id", "run_number", "sequence", "num_gpus", "progress", "epoch"), NullType()),
    **dict.fromkeys(("throughput", "predicted_throughput", "efficiency", "goodput"), NullType()),
    **dict.fromkeys(("global_batch_size", "atomic_batch_size", "accumulation_steps"), NullType()),
    "at": UtcDateTime(),
}
"""Columns of job_samples that a point needs, and the SQL type by which each is read."""


def _column_of(source: Any, view: str, name: str) -> Any:
    if name not in source.c:
        raise UsageError(f"{view} has no column {name}; see docs/sql.md")
    return source.c[name]


def _table_of(kind: type[Any]) -> Any:
    """Return the view of a row class, with the class's columns in its order."""
    types = column_types(kind)
    return table(kind.VIEW, *(column(name, of) for name, (of, _) in types.items()))


def _within(
    moment: Any, kind: type, since: datetime | None, until: datetime | None
) -> list[ColumnElement[bool]]:
    """Return the conditions on a column of moments, or of days, by `kind`."""
    found: list[ColumnElement[bool]] = []
    if since is not None:
        found.append(moment >= _moment(since, kind))
    if until is not None:
        before = _moment(until, kind)
        whole = isinstance(before, datetime) or until.astimezone(timezone.utc).time() == datetime.min.time()
        found.append(moment < before if whole else moment <= before)
    return found


def _known_job(connection: Connection, slurm_job_id: str) -> int:
    """Return the newest job with this Slurm job id, from a view: a reader's login may not read tables."""
    jobs = table("job_goodput", column("job_id"), column("slurm_job_id"))
    newest = select(func.max(jobs.c.job_id)).where(jobs.c.slurm_job_id == clean_text(slurm_job_id))
    job_id: int | None = connection.execute(newest).scalar()
    if job_id is None:
        raise UnknownJobError(f"job {slurm_job_id} is not known as an adaptive job; see: pollux status --all")
    return job_id


def _moment(at: datetime, kind: type) -> datetime | date:
    if at.tzinfo is None:
        raise StoreError(f"a time without a zone: {at!r}")
    return at.astimezone(timezone.utc).date() if kind is date else at


def _point(row: Any) -> SamplePoint:
    return SamplePoint(
        at=row.at,
        run_number=row.run_number,
        num_gpus=row.num_gpus,
        num_samples=row.num_samples,
        throughput=row.throughput,
        predicted_throughput=row.predicted_throughput,
        efficiency=row.efficiency,
        goodput=row.goodput,
        progress=row.progress,
        epoch=row.epoch,
        batch=batch_of_row(row),
    )
