"""Delete details older than the admin's retention: `pollux db prune`.

Deleted, where older than the limit and the job is over: goodput samples, decisions, all model versions but
each job's last, and checkpoints that answered no reallocation. Of every old round but the last: the texts for
replays, and the prices when none of its decisions is left.

Reports may come every second, for as long as a job lives. So of a job's samples, models and such checkpoints
that are older than a day, the last of each minute is kept, whether the job is over or not.

Kept whatever its age: all else of a job that is not over; jobs, runs, allocation intervals, reallocations
with their steps, generations, rounds without their texts, and the sums by day. So every reporting view
returns the same as before, except for the samples in `job_samples` and the checkpoints in `job_timeline`.

Each transaction changes at most `batch_rows` rows, and is followed by a pause as long as it took, so that
agents and the daemon get to write. SQLite's writers wait in no order. Rows are looked for before it begins:
what may be deleted once may be deleted for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    exists,
    func,
    or_,
    select,
    tuple_,
    update,
)

from pollux_slurm.errors import UsageError
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.opening import open_database
from pollux_slurm.store.access.sanitizing import utc
from pollux_slurm.store.jobs.submissions import newest_of_job
from pollux_slurm.store.maintenance.thinning import (
    THINNED_AFTER,
    dense_checkpoints,
    dense_models,
    dense_samples,
)
from pollux_slurm.store.schema import (
    Base,
    CheckpointRow,
    DecisionRow,
    GpuPriceRow,
    JobRow,
    ModelVersionRow,
    RoundRow,
    RunRow,
    SampleRow,
)

BATCH_ROWS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOutcome:
    """Rows that were, or would be, deleted, by table. `rounds` counts those without their texts."""

    url: str
    before: datetime
    dry_run: bool
    rows: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One kind of row to delete. `select` finds them; `key` are its first columns, in scan order."""

    name: str
    select: Any
    key: Sequence[Any]
    remove: Any
    per_batch: int


def prune_store(
    url: str,
    *,
    older_than: timedelta,
    at: datetime,
    dry_run: bool = False,
    batch_rows: int = BATCH_ROWS,
    wait: Callable[[float], None] = time.sleep,
    on_deleted: Callable[[int], None] = lambda _rows: None,
) -> PruneOutcome:
    """Delete details older than `older_than` before `at`; with `dry_run`, only count them.

    `on_deleted` is called after each transaction with the number of its rows.

    An interrupted call keeps what it deleted, and the next one continues. Raises `UsageError` for a duration
    that is not above 0, and what opening a store raises.
    """
    if older_than <= timedelta(0):
        raise UsageError(f"details of {older_than} cannot be pruned: name a span above 0, such as 90d")
    database = open_database(url)
    try:
        before = utc(at) - older_than
        counts = tuple(
            (
                part.name,
                _count(database, part) if dry_run else _remove(database, part, wait, on_deleted),
            )
            for part in _parts(
                database.engine.dialect.name, before, utc(at) - THINNED_AFTER, max(batch_rows, 1)
            )
        )
        return PruneOutcome(url=str(database.url), before=before, dry_run=dry_run, rows=counts)
    finally:
        database.close()


def _remove(
    database: Database, part: _Part, wait: Callable[[float], None], on_deleted: Callable[[int], None]
) -> int:
    total = 0
    after: tuple[Any, ...] | None = None
    while True:
        began = time.monotonic()
        with database.read() as connection:
            keys = _next_keys(connection, part, after)
        if keys:
            names = [f"b_{column.key}" for column in part.key]
            with database.write() as connection:
                connection.execute(part.remove, [dict(zip(names, key, strict=True)) for key in keys])
        total += len(keys)
        on_deleted(len(keys))
        if len(keys) < part.per_batch:
            return total
        # The scan continues behind the last key.
        after = keys[-1]
        wait(time.monotonic() - began)


def _next_keys(connection: Connection, part: _Part, after: tuple[Any, ...] | None) -> list[tuple[Any, ...]]:
    query = part.select.order_by(*part.key).limit(part.per_batch)
    if after is not None:
        query = query.where(
            tuple_(*part.key) > tuple_(*(_bound(c, v) for c, v in zip(part.key, after, strict=True)))
        )
    return [tuple(row) for row in connection.execute(query)]


def _bound(column: Any, value: Any) -> Any:
    return bindparam(None, value, type_=column.type)


def _count(database: Database, part: _Part) -> int:
    with database.read() as connection:
        return connection.execute(select(func.count()).select_from(part.select.subquery())).scalar_one()


def _parts(dialect: str, before: datetime, day_old: datetime, batch_rows: int) -> list[_Part]:
    over = JobRow.finished_at.is_not(None)

    def old(row: Any, dense: ColumnElement[bool], gone: ColumnElement[bool] = over) -> ColumnElement[bool]:
        # The first condition is for the index on time.
        either = or_(and_(row.at < before, gone), and_(row.at < day_old, dense))
        return and_(row.at < max(before, day_old), either)

    newest = select(func.max(RoundRow.id)).scalar_subquery()
    old_rounds = select(func.max(RoundRow.id)).where(RoundRow.at < before).scalar_subquery()
    last_model = newest_of_job(ModelVersionRow.id, ModelVersionRow.job_id)
    decided = exists().where(DecisionRow.round_id == GpuPriceRow.round_id)

    def part(name: str, row: type[Base], found: Any, *key: Any) -> _Part:
        where = [column == bindparam(f"b_{column.key}") for column in key]
        return _Part(name=name, select=found, key=key, remove=delete(row).where(*where), per_batch=batch_rows)

    sample_key = (SampleRow.at, SampleRow.run_id, SampleRow.sequence)
    decision_key = (DecisionRow.job_id, DecisionRow.round_id)
    checkpoint_key = (CheckpointRow.at, CheckpointRow.run_id, CheckpointRow.sequence)
    price_key = (GpuPriceRow.round_id, GpuPriceRow.gpu_type)
    return [
        part(
            "goodput_samples",
            SampleRow,
            select(*sample_key)
            .join(RunRow, RunRow.id == SampleRow.run_id)
            .join(JobRow, JobRow.id == RunRow.job_id)
            .where(old(SampleRow, dense_samples(dialect))),
            *sample_key,
        ),
        part(
            "decisions",
            DecisionRow,
            select(*decision_key)
            .join(JobRow, JobRow.id == DecisionRow.job_id)
            .join(RoundRow, RoundRow.id == DecisionRow.round_id)
            # The two bounds skip jobs and rounds that cannot have any.
            .where(
                RoundRow.at < before, DecisionRow.round_id <= old_rounds, JobRow.submitted_at < before, over
            ),
            *decision_key,
        ),
        part(
            "model_versions",
            ModelVersionRow,
            select(ModelVersionRow.id)
            .join(JobRow, JobRow.id == ModelVersionRow.job_id)
            .where(old(ModelVersionRow, dense_models(dialect), and_(over, ModelVersionRow.id < last_model))),
            ModelVersionRow.id,
        ),
        part(
            "checkpoints",
            CheckpointRow,
            select(*checkpoint_key)
            .join(RunRow, RunRow.id == CheckpointRow.run_id)
            .join(JobRow, JobRow.id == RunRow.job_id)
            .where(CheckpointRow.reallocation_id.is_(None), old(CheckpointRow, dense_checkpoints(dialect))),
            *checkpoint_key,
        ),
        part(
            "gpu_prices",
            GpuPriceRow,
            select(*price_key)
            .join(RoundRow, RoundRow.id == GpuPriceRow.round_id)
            .where(RoundRow.at < before, RoundRow.id < newest, ~decided),
            *price_key,
        ),
        _Part(
            name="rounds",
            select=select(RoundRow.id).where(
                RoundRow.at < before, RoundRow.id < newest, func.length(RoundRow.problem) > 0
            ),
            key=(RoundRow.id,),
            remove=update(RoundRow).where(RoundRow.id == bindparam("b_id")).values(problem="", decision=""),
            # A round's texts may be a megabyte each.
            per_batch=max(batch_rows // 50, 1),
        ),
    ]
