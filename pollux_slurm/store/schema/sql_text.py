"""The schema as SQL text to read: `sql/schema/*.sql`, generated from the typed tables and the views."""

from __future__ import annotations

from sqlalchemy import Dialect, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable, DDLElement, SetColumnComment, SetTableComment

from pollux_slurm.errors import UsageError
from pollux_slurm.store.schema import REVISIONS, Base
from pollux_slurm.store.schema.triggers import trigger_sql
from pollux_slurm.store.schema.views import VIEWS, view_sql

_DIALECTS = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}


def schema_text(name: str) -> str:
    """Return tables, indexes, comments, triggers and views for `sqlite` or `postgresql`."""
    if name not in _DIALECTS:
        raise UsageError(f"no schema for {name!r}; there is one for: {', '.join(_DIALECTS)}")
    dialect: Dialect = _DIALECTS[name]()
    parts = [
        f"-- Schema {REVISIONS[-1]} of a pollux store on {name}. Generated: pollux db schema {name}\n"
        "-- Times are UTC. A store is made by `pollux db init`, not from this text."
    ]
    for table in Base.metadata.sorted_tables:
        parts.extend(_table_text(table, dialect))
    parts.extend(f"{statement};" for statement in trigger_sql(name))
    parts.extend(f"{view_sql(view, name)};" for view in VIEWS)
    return "\n\n".join(parts) + "\n"


def _table_text(table: Table, dialect: Dialect) -> list[str]:
    create = str(CreateTable(table).compile(dialect=dialect)).strip().replace("\t", "    ")
    create = "\n".join(line.rstrip() for line in create.splitlines())
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    parts = [f"{create};", *(f"{CreateIndex(index).compile(dialect=dialect)};" for index in indexes)]
    if dialect.supports_comments:
        comments: list[DDLElement] = [SetTableComment(table)]
        comments += [SetColumnComment(column) for column in table.columns]
        parts.append("\n".join(f"{comment.compile(dialect=dialect)};" for comment in comments))
    else:
        words = [f"-- {table.name}: {table.comment}"]
        words += [f"--   {column.name}: {column.comment}" for column in table.columns]
        parts.insert(0, "\n".join(words))
    return parts
