"""Which old rows of reports may go because a later one of the same minute says at least as much.

A job may report every second for as long as it lives. Its sums by day are kept as reports arrive, so that
they do not change when rows go. What is left of each minute is the last row: its progress and examples count
from the beginning. Where only some rows have a throughput, the last with one is left as well.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select, true
from sqlalchemy.orm import aliased

from pollux_slurm.store.schema import CheckpointRow, ModelVersionRow, SampleRow

THINNED_AFTER = timedelta(days=1)


def dense_samples(dialect: str) -> ColumnElement[bool]:
    """Select samples that another of their run follows in the same minute."""
    row = SampleRow
    return _is_followed(
        dialect,
        row,
        row.sequence,
        row.run_id,
        says_as_much=lambda later: or_(row.throughput.is_(None), later.throughput.is_not(None)),
    )


def dense_models(dialect: str) -> ColumnElement[bool]:
    """Select models that another follows in the same minute: of their run, or of no run in particular."""
    row = ModelVersionRow
    of_run = _is_followed(
        dialect,
        row,
        row.id,
        row.job_id,
        row.run_number,
        says_as_much=lambda later: or_(row.alpha_g.is_(None), later.alpha_g.is_not(None)),
    )
    return or_(of_run, and_(row.run_number.is_(None), _is_followed(dialect, row, row.id, row.job_id)))


def dense_checkpoints(dialect: str) -> ColumnElement[bool]:
    """Select checkpoints that another of their run follows in the same minute."""
    return _is_followed(dialect, CheckpointRow, CheckpointRow.sequence, CheckpointRow.run_id)


def _is_followed(
    dialect: str,
    row: Any,
    order: Any,
    *same: Any,
    says_as_much: Callable[[Any], ColumnElement[bool]] = lambda _later: true(),
) -> ColumnElement[bool]:
    later = aliased(row)
    next_at = (
        select(later.at)
        .where(
            *(getattr(later, column.key) == column for column in same),
            getattr(later, order.key) > order,
            says_as_much(later),
        )
        .order_by(getattr(later, order.key))
        .limit(1)
        .correlate(row)
        .scalar_subquery()
    )
    return _minute(dialect, next_at) == _minute(dialect, row.at)


def _minute(dialect: str, at: Any) -> ColumnElement[Any]:
    # In SQLite a time is a text that begins with date, hour and minute.
    return func.substr(at, 1, 16) if dialect == "sqlite" else func.date_trunc("minute", at)
