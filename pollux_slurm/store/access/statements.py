"""What statements share: upserts and lists, which each database spells its own way, and being built once."""

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
    String,
    any_,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute

from pollux_slurm.store.access.sanitizing import clean_text
from pollux_slurm.store.schema import Base

built_once = functools.lru_cache(maxsize=8)
"""Keep the statements that a function returned last: building one takes longer than asking it."""


def upsert(connection: Connection, row: type[Base]) -> Any:
    """Return an INSERT that takes `on_conflict_do_nothing` and `on_conflict_do_update`."""
    module = sqlite if connection.dialect.name == "sqlite" else postgresql
    return module.insert(row)


def is_one_of(
    connection: Connection, column: InstrumentedAttribute[str], texts: Iterable[str]
) -> ColumnElement[bool]:
    """Return `column IN texts` with one bound value, whatever the number of texts.

    An IN with a parameter a text would reach the databases' limits (32,766 in SQLite) with a large array job.
    """
    values = [clean_text(text) for text in texts]
    if connection.dialect.name == "sqlite":
        listed = func.json_each(literal(json.dumps(values))).table_valued("value")
        return column.in_(select(listed.c.value))
    return column == any_(literal(values, postgresql.ARRAY(String())))


def is_one_of_ids(
    connection: Connection, column: InstrumentedAttribute[Any], numbers: Iterable[int]
) -> ColumnElement[bool]:
    """Return `column IN numbers`, likewise."""
    values = list(numbers)
    if connection.dialect.name == "sqlite":
        listed = func.json_each(literal(json.dumps(values))).table_valued("value")
        return column.in_(select(listed.c.value))
    return column == any_(literal(values, postgresql.ARRAY(BigInteger())))


def inserted_id(result: CursorResult[Any]) -> int:
    """Return the number that the database gave to the one row that was inserted."""
    assert result.inserted_primary_key is not None
    return int(result.inserted_primary_key[0])
