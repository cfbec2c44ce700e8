"""Shared by all tables: constraint names, UTC times, enumerations as checked text, column helpers."""

from __future__ import annotations

import enum
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, DateTime, Dialect, Enum, Integer, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from pollux_slurm.store.contract.bounds import BOUNDS

REVISIONS = ("0105", "0106")
"""Every schema version that can be upgraded, oldest first; the last is this release's. Their names sort.
They stand here so that opening a store does not import Alembic."""

VERSION_TABLE = "pollux_schema_version"

LAST_VIEW = "calendar"
"""The view that is made last, of all that contains no data but functions, roles and rights."""

# SQLite assigns ids only in a column of exactly INTEGER type.
BIG_INT = BigInteger().with_variant(Integer(), "sqlite")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime in UTC. SQLite, which has no zones, stores it as sortable text in UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time without a zone: {value!r}")
        value = value.astimezone(timezone.utc)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(timezone.utc)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        # Reports read a hundred thousand moments: SQLAlchemy's two steps for a text take five times as long.
        return _from_text if dialect.name == "sqlite" else super().result_processor(dialect, coltype)


def _from_text(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(f"{text}+00:00")


def checked_enum(kind: type[enum.Enum], name: str) -> Enum:
    """Return a text column type for the values of `kind` only; `name` is that of the check constraint."""
    return Enum(
        kind,
        name=name,
        native_enum=False,
        create_constraint=True,
        length=32,
        values_callable=lambda members: [str(member.value) for member in members],
        validate_strings=True,
    )


def time_column(comment: str, **options: Any) -> Mapped[datetime]:
    """Return a column for a UTC time that is always known."""
    return mapped_column(UtcDateTime, nullable=False, comment=comment, **options)


def nullable_time_column(comment: str) -> Mapped[datetime | None]:
    """Return a column for a UTC time that may be null."""
    return mapped_column(UtcDateTime, nullable=True, comment=comment)


def bounded(*columns: str, **fields: str) -> list[CheckConstraint]:
    """Return a check for each column that holds a field of reports: of the same name, or the one named.

    PostgreSQL holds NaN to be above every number: an upper bound keeps out NaN and infinity.
    """
    checks = []
    for column, field in {**dict(zip(columns, columns, strict=True)), **fields}.items():
        least, most = BOUNDS[field]
        checks.append(CheckConstraint(f"{column} BETWEEN {least} AND {most}", name=column))
    return checks


class Base(DeclarativeBase):
    """The registry of tables. Constraints get names, so that a migration can refer to them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
