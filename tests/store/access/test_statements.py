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
    store.jobs.register([registration(n, terms={"kind": f"k{n}"}) for n in numbers], at=at(0))
    store.jobs.observe([observation(n, gpus={"n0": 1, f"n{n}": 1}) for n in numbers], at=at(1))
    store.rounds.record(problem_of([*numbers]), decision_of([*numbers]), shadow=False, at=at(2))
    for n in numbers:
        store.agent.report(token_of(n), report(1), at=at(3))
        if n % 10 == 1:  # a transaction each: some are enough
            moved = plan(store, n, seconds=4)
            advance(store, moved, (Step.REQUEUED, 5), (Step.RUNNING, 6), (Step.CONFIRMED, 7))
            plan(store, n, seconds=8)
    assert len(store.jobs.active()) == jobs


# Statements of a round's parts, the same for 3 jobs as for 100, without BEGIN.
COUNTS = {
    "jobs.active": 24,
    "journal.open_reallocations": 3,
    "jobs.training_runs": 1,
    "kinds.earlier_jobs": 8,
    "jobs.used_gpus": 2,
    "lease.daemon_status": 2,
    "jobs.observe, nothing new": 2,
    "jobs.observe, all moved": 5,
    "jobs.observe, all typed": 4,
    "jobs.observe, all over": 4,
    "jobs.register, known": 1,
    "jobs.register, new": 4,
    "jobs.register, numbers used again": 6,
    "rounds.record": 9,
    "jobs.all": 24,
}
MORE_IN_POSTGRESQL = {"jobs.active": 1, "kinds.earlier_jobs": 1, "jobs.all": 1}  # the planner's settings

ROUND: dict[str, Callable[[Store, list[int]], object]] = {
    "jobs.active": lambda store, numbers: store.jobs.active(),
    "journal.open_reallocations": lambda store, numbers: store.journal.open_reallocations(),
    "jobs.training_runs": lambda store, numbers: store.jobs.training_runs(),
    "kinds.earlier_jobs": lambda store, numbers: store.kinds.earlier_jobs(since=at(-1)),
    "jobs.used_gpus": lambda store, numbers: store.jobs.used_gpus(since=at(0), at=at(9)),
    "lease.daemon_status": lambda store, numbers: store.lease.daemon_status(),
    "jobs.observe, nothing new": lambda store, numbers: store.jobs.observe(
        [observation(n, gpus={"n0": 1, f"n{n}": 1}) for n in numbers], at=at(20)
    ),
    "jobs.observe, all moved": lambda store, numbers: store.jobs.observe(
        [observation(n, gpus={"n9": 2}) for n in numbers], at=at(21)
    ),
    "jobs.observe, all typed": lambda store, numbers: store.jobs.observe(
        [observation(n, gpus={"n9": 2}, gpu_type="t4") for n in numbers], at=at(21)
    ),
    "jobs.observe, all over": lambda store, numbers: store.jobs.observe(
        [observation(n, JobState.COMPLETED, ended_at=at(22)) for n in numbers], at=at(22)
    ),
    "jobs.register, known": lambda store, numbers: store.jobs.register(
        [registration(n) for n in numbers], at=at(23)
    ),
    "jobs.register, new": lambda store, numbers: store.jobs.register(
        [registration(n + 1000) for n in numbers], at=at(24)
    ),
    "jobs.register, numbers used again": lambda store, numbers: store.jobs.register(
        [
            registration(
                n + 1000, user_id=7, terms={"token_sha256": registration(n + 5000).terms.token_sha256}
            )
            for n in numbers
        ],
        at=at(25),
    ),
    "rounds.record": lambda store, numbers: store.rounds.record(
        problem_of(numbers), decision_of(numbers), shadow=False, at=at(26)
    ),
    "jobs.all": lambda store, numbers: store.jobs.all(),
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
    any_store.jobs.register([registration(1)], at=at(0))
    any_store.agent.report(token_of(1), report(1), at=at(1))
    with statements_of(any_store) as sent:
        if call == "report":
            any_store.agent.report(token_of(1), report(2), at=at(2))
        else:
            any_store.agent.poll(token_of(1), 0, at=at(2))
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
        store.jobs.active()
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
        store.jobs.active()
        store.agent.poll(token_of(1), 0, at=at(30))
        store.agent.report(token_of(1), report(2), at=at(30))
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
    of_all_jobs = ("ix_reallocation_steps_step_at", "ix_allocations_started_at", "ix_jobs_submitted_at")
    assert [p for p in plans if any(index in p for index in of_all_jobs)] == []
