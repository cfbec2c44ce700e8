"""The GPUs that users have had: ended allocation intervals by day, and those that last."""

from __future__ import annotations

from datetime import datetime, time, timedelta, timezone
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select
from sqlalchemy.orm import InstrumentedAttribute

from pollux_slurm.store.contract.interface import UsedGpus
from pollux_slurm.store.schema import AllocationDayRow, AllocationNodeRow, AllocationRow, JobRow, UserRow


def read_used_gpus(connection: Connection, *, since: datetime, at: datetime) -> tuple[UsedGpus, ...]:
    """Return the GPU seconds of users and accounts from the day of `since` up to `at`."""
    day = AllocationDayRow.day
    gpu_s = func.sum(AllocationDayRow.allocated_s * AllocationNodeRow.num_gpus).label("gpu_s")
    ended = connection.execute(
        _of_users(AllocationDayRow, day, gpu_s).where(day >= since.astimezone(timezone.utc).date())
    )
    found = []
    for row in ended:
        begin = datetime.combine(row.day, time(), timezone.utc)
        until = min(begin + timedelta(days=1), max(at, begin))
        found.append(
            UsedGpus(user_name=row.user_name, account=row.account, since=begin, until=until, gpu_s=row.gpu_s)
        )
    num_gpus = func.sum(AllocationNodeRow.num_gpus).label("num_gpus")
    lasting = connection.execute(
        _of_users(AllocationRow, AllocationRow.started_at, num_gpus).where(AllocationRow.ended_at.is_(None))
    )
    for row in lasting:
        begin = min(row.started_at, at)
        gpu_s = int(row.num_gpus) * (at - begin).total_seconds()
        found.append(
            UsedGpus(user_name=row.user_name, account=row.account, since=begin, until=at, gpu_s=gpu_s)
        )
    return tuple(found)


def _of_users(
    rows: type[AllocationDayRow] | type[AllocationRow],
    key: InstrumentedAttribute[Any],
    total: ColumnElement[Any],
) -> Select[Any]:
    """Select a total over the nodes of `rows`, by user, account and key."""
    return (
        select(UserRow.user_name, JobRow.account, key, total)
        .join(JobRow, JobRow.id == rows.job_id)
        .join(UserRow, UserRow.user_id == JobRow.user_id)
        .join(
            AllocationNodeRow,
            (AllocationNodeRow.job_id == rows.job_id) & (AllocationNodeRow.number == rows.number),
        )
        .group_by(UserRow.user_name, JobRow.account, key)
    )
