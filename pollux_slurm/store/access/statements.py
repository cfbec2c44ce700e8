"""Helpers for statements: upserts and lists, which differ between the databases, and a cache."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    CursorResult,
    Select,
    String,
    any_,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute

from pollux_slurm.store.access.sanitizing import clean_text
from pollux_slurm.store.schema import Base, JobRow

cached_statement = functools.lru_cache(maxsize=32)
"""Cache the statements that a function returned last: building one takes longer than running it."""


@cached_statement
def newest_job(slurm_job_id: str) -> Select[int]:
    """Select the id of the newest job with a Slurm job id, or null: slurmctld may start its ids anew."""
    return select(func.max(JobRow.id)).where(JobRow.slurm_job_id == clean_text(slurm_job_id))


def upsert(connection: Connection, row: type[Base]) -> Any:
    """Return an INSERT with `on_conflict_do_nothing` and `on_conflict_do_update`."""
    module = sqlite if connection.dialect.name == "sqlite" else postgresql
    return module.insert(row)


def is_one_of(
    connection: Connection, column: InstrumentedAttribute[str], texts: Iterable[str]
) -> ColumnElement[bool]:
    """Return `column IN texts` with a single bound value.

    One parameter per text could exceed the databases' limits (32,766 in SQLite) with a large job array.
    """
    values = [clean_text(text) for text in texts]
    if connection.dialect.name == "sqlite":
        listed = func.json_each(literal(json.dumps(values))).table_valued("value")
        return column.in_(select(listed.c.value))
    return column == any_(literal(values, postgresql.ARRAY(String())))


def is_one_of_ids(
    connection: Connection, column: InstrumentedAttribute[Any], numbers: Iterable[int]
) -> ColumnElement[bool]:
    """Return `column IN numbers` with a single bound value."""
    values = list(numbers)
    if connection.dialect.name == "sqlite":
        listed = func.json_each(literal(json.dumps(values))).table_valued("value")
        return column.in_(select(listed.c.value))
    return column == any_(literal(values, postgresql.ARRAY(BigInteger())))


def inserted_id(result: CursorResult[Any]) -> int:
    """Return the id of the one row that was inserted."""
    assert result.inserted_primary_key is not None
    return int(result.inserted_primary_key[0])
