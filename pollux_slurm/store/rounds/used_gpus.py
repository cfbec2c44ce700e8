"""The GPUs that users have had: ended allocation intervals by day, and those that last."""

from __future__ import annotations

from datetime import datetime, time, timedelta, timezone

from sqlalchemy import Connection, func, select

from pollux_slurm.store.contract.interface import UsedGpus
from pollux_slurm.store.schema import AllocationDayRow, AllocationNodeRow, AllocationRow, JobRow, UserRow


def read_used_gpus(connection: Connection, *, since: datetime, at: datetime) -> tuple[UsedGpus, ...]:
    """Return the GPU seconds of users and accounts from the day of `since` up to `at`."""
    ended = connection.execute(
        select(
            UserRow.user_name,
            JobRow.account,
            AllocationDayRow.day,
            func.sum(AllocationDayRow.allocated_s * AllocationNodeRow.num_gpus).label("gpu_s"),
        )
        .join(JobRow, JobRow.id == AllocationDayRow.job_id)
        .join(UserRow, UserRow.user_id == JobRow.user_id)
        .join(
            AllocationNodeRow,
            (AllocationNodeRow.job_id == AllocationDayRow.job_id)
            & (AllocationNodeRow.number == AllocationDayRow.number),
        )
        .where(AllocationDayRow.day >= since.astimezone(timezone.utc).date())
        .group_by(UserRow.user_name, JobRow.account, AllocationDayRow.day)
    )
    found = []
    for row in ended:
        begin = datetime.combine(row.day, time(), timezone.utc)
        until = min(begin + timedelta(days=1), max(at, begin))
        found.append(
            UsedGpus(user_name=row.user_name, account=row.account, since=begin, until=until, gpu_s=row.gpu_s)
        )
    lasting = connection.execute(
        select(
            UserRow.user_name,
            JobRow.account,
            AllocationRow.started_at,
            func.sum(AllocationNodeRow.num_gpus).label("num_gpus"),
        )
        .join(JobRow, JobRow.id == AllocationRow.job_id)
        .join(UserRow, UserRow.user_id == JobRow.user_id)
        .join(
            AllocationNodeRow,
            (AllocationNodeRow.job_id == AllocationRow.job_id)
            & (AllocationNodeRow.number == AllocationRow.number),
        )
        .where(AllocationRow.ended_at.is_(None))
        .group_by(UserRow.user_name, JobRow.account, AllocationRow.started_at)
    )
    for row in lasting:
        begin = min(row.started_at, at)
        gpu_s = int(row.num_gpus) * (at - begin).total_seconds()
        found.append(
            UsedGpus(user_name=row.user_name, account=row.account, since=begin, until=at, gpu_s=gpu_s)
        )
    return tuple(found)
