"""Time each reporting view on a month of a year's history, and show the query plans."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from pollux_slurm.store.access.database import Database
from pollux_slurm.store.reporting.view_rows import ROW_TYPES

SINCE, UNTIL = "2025-06-01", "2025-07-01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one view took for all rows and columns of its month; `plan` is the database's own words.

    `cpu_s` is the processor's time of the second asking: what it takes where nothing else runs.
    """

    view: str
    rows: int
    first_s: float
    again_s: float
    cpu_s: float
    plan: str


def questions() -> Iterator[tuple[str, str]]:
    """Return a query of each view: all its rows of June."""
    for kind in ROW_TYPES:
        month = f"{kind.TIME} >= '{SINCE}' AND {kind.TIME} < '{UNTIL}'"
        yield kind.VIEW, f"SELECT * FROM {kind.VIEW} WHERE {month}"


def answers(database: Database, used_s: Callable[[], float]) -> Iterator[Answer]:
    """Run all queries, each twice; `used_s` returns the CPU time that the database has used so far."""
    for view, question in questions():
        with database.read() as connection:
            if connection.dialect.name == "sqlite":
                yield _in_sqlite(connection, view, question, used_s)
            else:
                yield _in_postgresql(connection, view, question, used_s)


def _in_sqlite(connection: Connection, view: str, question: str, used_s: Callable[[], float]) -> Answer:
    times, rows, cpu_s = [], 0, 0.0
    for _ in range(2):
        before, began = used_s(), time.perf_counter()
        rows = sum(1 for _ in connection.exec_driver_sql(question))
        times.append(time.perf_counter() - began)
        cpu_s = used_s() - before
    depth = {0: -1}
    plan = []
    for number, parent, _, words in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {question}"):
        depth[number] = depth.get(parent, -1) + 1
        plan.append("  " * depth[number] + str(words))
    return Answer(view=view, rows=rows, first_s=times[0], again_s=times[1], cpu_s=cpu_s, plan="\n".join(plan))


def _in_postgresql(connection: Connection, view: str, question: str, used_s: Callable[[], float]) -> Answer:
    """Let the server time itself: turning rows into Python's objects would be timed otherwise."""
    times: list[float] = []
    plan, cpu_s = "", 0.0
    for _ in range(2):
        before = used_s()
        lines = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, TIMING OFF) {question}").scalars()
        plan = "\n".join(lines)
        taken = re.findall(r"^(?:Planning|Execution) Time: ([0-9.]+) ms$", plan, re.MULTILINE)
        times.append(sum(map(float, taken)) / 1000)
        cpu_s = used_s() - before
    rows = re.search(r"actual rows=([0-9]+)", plan)
    return Answer(
        view=view,
        rows=int(rows[1]) if rows else 0,
        first_s=times[0],
        again_s=times[1],
        cpu_s=cpu_s,
        plan=plan,
    )
