"""With the smallest and the largest value of each column, no view and no report fails."""

from __future__ import annotations

import functools
import io
import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy import BigInteger, Column, Connection, Double, Integer, update
from sqlalchemy.exc import DBAPIError

from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.document.forms.exports import data_csv, document_json
from pollux_slurm.document.forms.html import document_html
from pollux_slurm.document.forms.terminal import print_document
from pollux_slurm.report.group import account_document, cluster_document
from pollux_slurm.report.job import job_document
from pollux_slurm.report.reading import read_group, read_job
from pollux_slurm.report.shadow import read_shadow, shadow_document
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.reporting.queries import ViewReader
from pollux_slurm.store.schema import Base
from pollux_slurm.store.schema.views import VIEWS
from tests.store.builders import (
    at,
    decision_of,
    move_running_job,
    observation,
    problem_of,
    registration,
    report,
    token_of,
)

TINY = (5e-324, 1e-200)
REALS = (-1.7e308, -1e30, -1.0, 0.0, *TINY, 1e-9, 0.5, 1.0, 1e6, 1e7, 1e12, 1e18, 1e27, 1e30, 1e150, 1.7e308)
WHOLES = (-(2**31), -1, 0, 1, 2, 1000, 10**6, 10**9, 2**31 - 1)
LARGE = (-(2**63), *WHOLES, 10**12, 10**15, 2**60, 2**63 - 1)


@pytest.fixture
def database(any_store: Store) -> Database:
    """Return a store with rows of two jobs in every table that a view reads."""
    store = any_store
    store.jobs.register([registration(1), registration(2, user_id=1002, user_name="grace")], at=at(0))
    store.jobs.observe([observation(n, gpus={"n0": 2}, started_at=at(1)) for n in (1, 2)], at=at(1))
    for second, shadow in ((5, False), (6, True), (7, True)):
        store.rounds.record(problem_of([1, 2]), decision_of([1, 2]), shadow=shadow, at=at(second))
    for token in (token_of(1), token_of(2, 1002)):
        store.agent.report(token, report(1), at=at(10))
        store.agent.report(token, report(2), at=at(15))
    move_running_job(store)
    store.jobs.observe(
        [observation(1, gpus={"n1": 3, "n2": 1}, restart_count=1, started_at=at(29))], at=at(60)
    )
    found: Database = store.database  # type: ignore[attr-defined]
    return found


def numeric_columns() -> Iterator[tuple[Column[Any], tuple[Any, ...]]]:
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            if not column.primary_key and not column.foreign_keys:
                if isinstance(column.type, Double):
                    yield column, REALS
                elif isinstance(column.type, Integer):
                    yield column, LARGE if isinstance(column.type, BigInteger) else WHOLES


def is_set(connection: Connection, column: Column[Any], value: Any) -> bool:
    """Set a value in all rows of a table; return whether the database accepts it."""
    point = connection.begin_nested()
    try:
        connection.execute(update(column.table).values({column: value}))
    except (DBAPIError, OverflowError):
        point.rollback()
        return False
    point.commit()
    return True


def extremes(connection: Connection) -> dict[Column[Any], list[Any]]:
    """Return, per column, the smallest, the largest and a tiny value that the database accepts."""
    dialect = connection.dialect.name
    if dialect not in _known:
        found = {}
        for column, values in numeric_columns():
            point = connection.begin_nested()
            taken = [value for value in values if is_set(connection, column, value)]
            point.rollback()
            tiny = [value for value in taken if value in TINY] or taken
            if taken:
                found[column] = [taken[0], taken[-1], tiny[0]]
        _known[dialect] = found
    return _known[dialect]


_known: dict[str, dict[Column[Any], list[Any]]] = {}


@pytest.mark.parametrize(
    "which",
    [
        pytest.param(0, id="smallest"),
        pytest.param(1, id="largest"),
        pytest.param(2, id="tiny", marks=pytest.mark.full),
    ],
)
def test_that_no_view_fails_on_the_extremes_of_any_table(database: Database, which: int) -> None:
    failed = []
    with database.engine.connect() as connection:
        for table in Base.metadata.sorted_tables:
            changed = connection.begin_nested()
            for column, values in extremes(connection).items():
                if column.table is table:
                    is_set(connection, column, values[which])
            for view in VIEWS:
                point = connection.begin_nested()
                try:
                    connection.exec_driver_sql(f"SELECT * FROM {view}").fetchall()
                except DBAPIError as error:
                    failed.append(f"{view}, extremes of {table}: {error.orig}")
                point.rollback()
            changed.rollback()
    assert not failed, "\n".join(failed)


# All at their largest, and one random mixture; other mixtures of the same values are in `make test-full`.
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed in (1, 3) else [pytest.mark.full]) for seed in range(8)]
)
def test_that_no_report_fails_whatever_is_stored(database: Database, seed: int) -> None:
    """All columns at their smallest, largest or tiny value, or each at a random one of these."""
    chance = random.Random(seed)
    with database.write() as connection:
        for column, values in extremes(connection).items():
            is_set(connection, column, values[seed] if seed < 3 else chance.choice(values))
    reports, range_ = ViewReader(database), Range(since=at(-60), until=at(0) + timedelta(days=1))
    group = functools.partial(read_group, reports, range_)
    options: dict[str, Any] = {"made_at": at(90), "command": "pollux report"}
    documents = [
        job_document(read_job(reports, "1"), made_at=at(90)),
        account_document(group(account="vision"), range_, account="vision", **options),
        cluster_document(group(), range_, **options),
        shadow_document(read_shadow(reports, range_), range_, **options),
    ]
    for document in documents:
        assert document_html(document)
        assert document_json(document)
        print_document(document, Console(file=io.StringIO(), width=120))
        for name in document.tables():
            assert data_csv(document.table(name))
