"""Time each reporting view on a month of a year's history, and show how the database went about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from pollux_slurm.store.database import Database
from pollux_slurm.store.reporting import ROW_TYPES

SINCE, UNTIL = "2025-06-01", "2025-07-01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one view took for its month, all rows and columns read. `plan` is the database's own words."""

    view: str
    rows: int
    first_s: float
    again_s: float
    plan: str


def questions() -> Iterator[tuple[str, str]]:
    """Give a month's question to each view: all that it says about June."""
    for kind in ROW_TYPES:
        month = f"{kind.TIME} >= '{SINCE}' AND {kind.TIME} < '{UNTIL}'"
        yield kind.VIEW, f"SELECT * FROM {kind.VIEW} WHERE {month}"


def answers(database: Database) -> Iterator[Answer]:
    """Ask all questions, each twice."""
    for view, question in questions():
        with database.read() as connection:
            times, rows = [], 0
            for _ in range(2):
                began = time.perf_counter()
                rows = sum(1 for _ in connection.exec_driver_sql(question))
                times.append(time.perf_counter() - began)
            yield Answer(
                view=view, rows=rows, first_s=times[0], again_s=times[1], plan=_plan(connection, question)
            )


def _plan(connection: Connection, question: str) -> str:
    if connection.dialect.name == "sqlite":
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {question}").all()
        depth = {0: -1}
        lines = []
        for number, parent, _, words in rows:
            depth[number] = depth.get(parent, -1) + 1
            lines.append("  " * depth[number] + str(words))
        return "\n".join(lines)
    return "\n".join(str(row[0]) for row in connection.exec_driver_sql(f"EXPLAIN (COSTS OFF) {question}"))
