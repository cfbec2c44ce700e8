"""A round takes as many statements for 100 jobs as for 3, and each reads by an index."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from pollux_slurm.model import JobState
from pollux_slurm.store.contract.interface import Store
from tests.store.builders import (
    Step,
    advance,
    at,
    decision_of,
    observation,
    plan,
    problem_of,
    registration,
    report,
    token_of,
)
from tests.store.conftest import wipe


def engine_of(store: Store) -> Engine:
    return store.database.engine  # type: ignore[attr-defined,no-any-return]


@contextmanager
def statements_of(store: Store) -> Iterator[list[str]]:
    """Return the statements that are sent while the block runs."""
    sent: list[str] = []

    def record(_connection, _cursor, statement, _parameters, _context, _many) -> None:  # type: ignore[no-untyped-def]
        if not statement.startswith("BEGIN"):  # sent as a statement in SQLite only
            sent.append(statement)

    engine = engine_of(store)
    event.listen(engine, "before_cursor_execute", record)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", record)


def fill(store: Store, jobs: int) -> None:
    """Give each of `jobs` jobs a run, a model, an allocation, a decision and reallocations."""
    numbers = range(1, jobs + 1)
    store.register_jobs([registration(n) for n in numbers], at=at(0))
    store.observe_jobs([observation(n, gpus={"n0": 1, f"n{n}": 1}) for n in numbers], at=at(1))
    store.record_round(problem_of([*numbers]), decision_of([*numbers]), shadow=False, at=at(2))
    for n in numbers:
        store.report(token_of(n), report(1), at=at(3))
        if n % 10 == 1:  # a transaction each: some are enough
            moved = plan(store, n, seconds=4)
            advance(store, moved, (Step.REQUEUED, 5), (Step.RUNNING, 6), (Step.CONFIRMED, 7))
            plan(store, n, seconds=8)
    assert len(store.active_jobs()) == jobs


# Statements of a round's parts, the same for 3 jobs as for 100, without BEGIN.
COUNTS = {
    "active_jobs": 24,
    "open_reallocations": 3,
    "training_runs": 1,
    "used_gpus": 2,
    "daemon_status": 2,
    "observe_jobs, nothing new": 2,
    "observe_jobs, all moved": 5,
    "observe_jobs, all typed": 4,
    "observe_jobs, all over": 4,
    "register_jobs, known": 1,
    "register_jobs, new": 4,
    "register_jobs, numbers used again": 6,
    "record_round": 9,
    "jobs": 24,
}
MORE_IN_POSTGRESQL = {"active_jobs": 1, "jobs": 1}  # the planner's settings

ROUND: dict[str, Callable[[Store, list[int]], object]] = {
    "active_jobs": lambda store, numbers: store.active_jobs(),
    "open_reallocations": lambda store, numbers: store.open_reallocations(),
    "training_runs": lambda store, numbers: store.training_runs(),
    "used_gpus": lambda store, numbers: store.used_gpus(since=at(0), at=at(9)),
    "daemon_status": lambda store, numbers: store.daemon_status(),
    "observe_jobs, nothing new": lambda store, numbers: store.observe_jobs(
        [observation(n, gpus={"n0": 1, f"n{n}": 1}) for n in numbers], at=at(20)
    ),
    "observe_jobs, all moved": lambda store, numbers: store.observe_jobs(
        [observation(n, gpus={"n9": 2}) for n in numbers], at=at(21)
    ),
    "observe_jobs, all typed": lambda store, numbers: store.observe_jobs(
        [observation(n, gpus={"n9": 2}, gpu_type="t4") for n in numbers], at=at(21)
    ),
    "observe_jobs, all over": lambda store, numbers: store.observe_jobs(
        [observation(n, JobState.COMPLETED, ended_at=at(22)) for n in numbers], at=at(22)
    ),
    "register_jobs, known": lambda store, numbers: store.register_jobs(
        [registration(n) for n in numbers], at=at(23)
    ),
    "register_jobs, new": lambda store, numbers: store.register_jobs(
        [registration(n + 1000) for n in numbers], at=at(24)
    ),
    "register_jobs, numbers used again": lambda store, numbers: store.register_jobs(
        [
            registration(
                n + 1000, user_id=7, terms={"token_sha256": registration(n + 5000).terms.token_sha256}
            )
            for n in numbers
        ],
        at=at(25),
    ),
    "record_round": lambda store, numbers: store.record_round(
        problem_of(numbers), decision_of(numbers), shadow=False, at=at(26)
    ),
    "jobs": lambda store, numbers: store.jobs(),
}


def test_that_the_number_of_statements_does_not_grow_with_the_jobs(any_store: Store) -> None:
    counts: dict[int, dict[str, int]] = {}
    store = any_store
    for jobs in (3, 30):
        counts[jobs] = {}
        fill(store, jobs)
        for name, call in ROUND.items():
            with statements_of(store) as sent:
                call(store, list(range(1, jobs + 1)))
            counts[jobs][name] = len(sent)
        wipe(store)
    assert counts[30] == counts[3]
    is_postgres = store.database.engine.dialect.name == "postgresql"  # type: ignore[attr-defined]
    more = MORE_IN_POSTGRESQL if is_postgres else {}
    assert counts[30] == {name: count + more.get(name, 0) for name, count in COUNTS.items()}


@pytest.mark.parametrize("call", ["report", "poll"])
def test_that_an_agents_call_takes_few_statements(any_store: Store, call: str) -> None:
    any_store.register_jobs([registration(1)], at=at(0))
    any_store.report(token_of(1), report(1), at=at(1))
    with statements_of(any_store) as sent:
        if call == "report":
            any_store.report(token_of(1), report(2), at=at(2))
        else:
            any_store.poll(token_of(1), 0, at=at(2))
    assert len(sent) <= (9 if call == "report" else 4), sent


def test_that_a_round_reads_no_history_in_postgresql(postgres_store: Store, postgres_url: str) -> None:
    """Not even of tables whose statistics look empty, for which PostgreSQL prefers a scan."""
    store = postgres_store
    fill(store, 3)
    sent: list[tuple[str, Any]] = []

    def record(_connection, _cursor, statement, parameters, _context, _many) -> None:  # type: ignore[no-untyped-def]
        sent.append((statement, parameters))

    event.listen(engine_of(store), "before_cursor_execute", record)
    try:
        store.active_jobs()
    finally:
        event.remove(engine_of(store), "before_cursor_execute", record)
    plans: list[str] = []
    with store.database.read() as connection:  # type: ignore[attr-defined]
        for statement, parameters in sent:
            if statement.startswith("SET LOCAL"):
                connection.exec_driver_sql(statement)
            elif statement.startswith("SELECT"):
                rows = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)
                plans += [str(row[0]) for row in rows]
    assert len(plans) > 30
    assert [line for line in plans if "Seq Scan" in line] == []


def test_that_a_round_reads_no_history_in_sqlite(store: Store) -> None:
    """Only the job table may be scanned; every history is entered by an index."""
    fill(store, 3)
    with statements_of(store) as sent:
        store.active_jobs()
        store.poll(token_of(1), 0, at=at(30))
        store.report(token_of(1), report(2), at=at(30))
    plans = []
    with store.database.read() as connection:  # type: ignore[attr-defined]
        for statement in sent:
            if statement.startswith("SELECT"):
                values: Any = tuple("1" for _ in range(statement.count("?")))
                values = values or dict.fromkeys(re.findall(r":(\w+)", statement), "1")
                rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
                plans += [row[3] for row in rows]
    assert len(plans) > 30
    histories = ("goodput_samples", "model_versions", "decisions", "decision_nodes", "runs", "run_nodes")
    scanned = [p for p in plans if p.startswith("SCAN") and any(p.split()[1] == h for h in histories)]
    assert scanned == []
