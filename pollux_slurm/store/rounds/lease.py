"""The daemon's lease: one row, changed by one conditional statement."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, or_, select

from pollux_slurm.store.access.sanitizing import clean_text, utc
from pollux_slurm.store.access.statements import upsert
from pollux_slurm.store.contract.types import DaemonStatus
from pollux_slurm.store.schema import LeaseRow, RoundRow

_DAEMON = "daemon"


def acquire_lease(
    connection: Connection,
    owner: str,
    *,
    ttl_s: float,
    at: datetime,
    interval_s: float | None = None,
    watch_s: float | None = None,
) -> bool:
    """Acquire or renew the lease; False while another owner's has not expired."""
    owner, at = clean_text(owner), utc(at)
    statement = upsert(connection, LeaseRow).values(
        name=_DAEMON,
        owner=owner,
        renewed_at=at,
        expires_at=at + timedelta(seconds=ttl_s),
        interval_s=interval_s,
        watch_s=watch_s,
    )
    statement = statement.on_conflict_do_update(
        index_elements=[LeaseRow.name],
        set_={
            "owner": statement.excluded.owner,
            "renewed_at": statement.excluded.renewed_at,
            "expires_at": statement.excluded.expires_at,
            "interval_s": statement.excluded.interval_s,
            "watch_s": statement.excluded.watch_s,
        },
        # Renewed in the future: a clock was set back since, and the lease would not expire for as long.
        where=or_(
            LeaseRow.owner == owner,
            LeaseRow.expires_at <= at,
            LeaseRow.renewed_at > at + timedelta(seconds=ttl_s),
        ),
    )
    # Without this option SQLAlchemy does not ask PostgreSQL how many rows an INSERT wrote.
    result = connection.execute(statement, execution_options={"preserve_rowcount": True})
    return bool(result.rowcount == 1)


def holds_lease(connection: Connection, owner: str, *, at: datetime) -> bool:
    """Return whether `owner` has the lease at this moment."""
    lease_row = select(LeaseRow.name).where(
        LeaseRow.name == _DAEMON, LeaseRow.owner == clean_text(owner), LeaseRow.expires_at > utc(at)
    )
    return connection.execute(lease_row).first() is not None


def daemon_status(connection: Connection) -> DaemonStatus:
    """Return who acquired the lease last, even if it has expired, and when a round last decided."""
    newest = select(RoundRow.at, RoundRow.shadow).order_by(RoundRow.id.desc()).limit(1)
    at, is_shadow = connection.execute(newest).one_or_none() or (None, False)
    lease_row = connection.execute(
        select(
            LeaseRow.owner, LeaseRow.renewed_at, LeaseRow.expires_at, LeaseRow.interval_s, LeaseRow.watch_s
        ).where(LeaseRow.name == _DAEMON)
    ).one_or_none()
    if lease_row is None:
        return DaemonStatus(last_round_at=at, is_shadow=is_shadow)
    return DaemonStatus(
        owner=lease_row.owner,
        renewed_at=lease_row.renewed_at,
        expires_at=lease_row.expires_at,
        last_round_at=at,
        is_shadow=is_shadow,
        interval_s=lease_row.interval_s,
        watch_s=lease_row.watch_s,
    )


def release_lease(connection: Connection, owner: str) -> None:
    """Give the lease back, if `owner` has it."""
    connection.execute(delete(LeaseRow).where(LeaseRow.name == _DAEMON, LeaseRow.owner == clean_text(owner)))
