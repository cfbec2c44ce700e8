"""Outages and damage under an open store: writes are atomic, and no driver's error gets out."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import select, text

from pollux_slurm.errors import StoreError, StoreUnavailable
from pollux_slurm.store import open_store
from pollux_slurm.store.access import database as database_module
from pollux_slurm.store.access import engine
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.opening import open_database
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.schema import ModelVersionRow, UserRow
from tests.store.builders import MODEL, at, registration, report, token_of
from tests.store.postgres import PostgresServer


@pytest.fixture
def any_database(any_store_url: str) -> Database:
    return open_database(any_store_url)


def test_that_a_block_that_raises_leaves_nothing(any_database: Database) -> None:
    with pytest.raises(RuntimeError, match="in the midst"), any_database.write() as connection:  # noqa: PT012
        connection.execute(UserRow.__table__.insert(), {"user_id": 1, "user_name": "ada"})
        raise RuntimeError("in the midst")
    with any_database.read() as connection:
        assert connection.execute(UserRow.__table__.select()).all() == []
    any_database.close()


def test_that_a_read_sees_one_snapshot(any_database: Database) -> None:
    with any_database.read() as reading:
        assert reading.execute(UserRow.__table__.select()).all() == []
        with any_database.write() as connection:
            connection.execute(UserRow.__table__.insert(), {"user_id": 1, "user_name": "ada"})
        assert reading.execute(UserRow.__table__.select()).all() == []
    with any_database.read() as reading:
        assert len(reading.execute(UserRow.__table__.select()).all()) == 1
    any_database.close()


def test_that_a_refused_statement_raises_a_store_error(any_database: Database) -> None:
    with pytest.raises(StoreError, match="refused a statement") as refused:  # noqa: SIM117
        with any_database.write() as connection:
            connection.execute(UserRow.__table__.insert(), {"user_id": -1, "user_name": "ada"})
    assert "INSERT" not in str(refused.value), "neither the statement nor its values are shown"
    with pytest.raises(StoreError, match="cannot hold a value"), any_database.write() as connection:
        connection.execute(UserRow.__table__.insert(), {"user_id": 1, "user_name": "\udcff"})
    any_database.close()


def test_that_a_lock_that_outlasts_the_timeout_raises_store_unavailable(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.05)
    store = open_store(store_url)
    other = sqlite3.connect(store_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked by another process"):
        store.jobs.register([registration(1)], at=at(0))
    assert store.jobs.all() == (), "a reader does not wait for a writer"
    other.execute("ROLLBACK")
    other.close()
    assert store.jobs.register([registration(1)], at=at(0)) == ()
    store.close()


def test_that_a_client_that_stalls_within_a_write_to_postgresql_does_not_block_others(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "IDLE_IN_TRANSACTION_S", 1000.0)
    stalled = open_database(postgres_url)
    monkeypatch.undo()
    other = open_database(postgres_url)
    row = {"user_id": 1, "user_name": "ada"}
    setting = "idle_in_transaction_session_timeout"
    with pytest.raises(StoreUnavailable), stalled.write() as connection:  # noqa: PT012
        asked = f"SELECT setting FROM pg_settings WHERE name = '{setting}'"
        assert connection.exec_driver_sql(asked).scalar() == "1000000"
        connection.execute(UserRow.__table__.insert(), row)
        # Set only now: earlier, a busy machine could exceed it before the write.
        connection.exec_driver_sql(f"SET LOCAL {setting} = 200")
        with other.write() as waiting:
            waiting.execute(UserRow.__table__.insert(), row)
        connection.execute(UserRow.__table__.select())
    for database in (stalled, other):
        with database.read() as connection:
            assert len(connection.execute(UserRow.__table__.select()).all()) == 1
        database.close()


def test_that_a_store_removed_while_open_does_not_come_back_empty(store_url: str) -> None:
    path = Path(store_url.removeprefix("sqlite:///"))
    store = open_store(store_url)
    store.database.engine.dispose()  # type: ignore[attr-defined]
    path.unlink()
    with pytest.raises(StoreUnavailable, match="unable to open"):
        store.jobs.all()
    assert not path.exists()
    store.close()


def test_that_a_lost_table_raises_a_permanent_error(store_url: str) -> None:
    store = open_store(store_url)
    with sqlite3.connect(store_url.removeprefix("sqlite:///")) as connection:
        connection.execute("DROP TABLE goodput_samples")
    connection.close()
    store.jobs.register([registration(1)], at=at(0))
    with pytest.raises(StoreError, match="restore it from a backup") as refused:
        store.jobs.all()
    assert not isinstance(refused.value, StoreUnavailable)
    store.close()


def test_that_a_postgresql_that_stops_and_starts_is_used_again(
    postgres: PostgresServer, postgres_url: str
) -> None:
    store = open_store(postgres_url)
    store.jobs.register([registration(1)], at=at(0))
    store.agent.report(token_of(1), report(1), at=at(1))
    postgres.stop()
    try:
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                store.agent.report(token_of(1), report(2), at=at(2))
            with pytest.raises(StoreUnavailable):
                store.jobs.active()
    finally:
        postgres.start()
    store.agent.report(token_of(1), report(2), at=at(3))
    assert len(store.history.samples("1")) == 2
    store.close()


def test_that_connections_that_the_server_ended_are_replaced(
    postgres: PostgresServer, postgres_url: str
) -> None:
    store = open_store(postgres_url)
    assert store.jobs.all() == ()
    postgres.sql(
        "SELECT pg_terminate_backend(pid, 120000) FROM pg_stat_activity WHERE application_name = 'pollux'"
    )
    assert store.jobs.all() == ()
    store.close()


def test_that_reading_cannot_write_in_postgresql(postgres_url: str) -> None:
    database = open_database(postgres_url)
    with pytest.raises(StoreError, match="read-only"), database.read() as connection:
        connection.execute(text("DELETE FROM jobs"))
    database.close()


def test_that_sqlite_is_durable_and_checks_its_references(store_url: str) -> None:
    database = open_database(store_url)
    with database.read() as connection:
        for pragma, value in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar() == value
        timeout_ms = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
        assert timeout_ms == engine.BUSY_TIMEOUT_S * 1000
    database.close()


def test_that_a_store_shared_by_threads_serves_each(store: Store) -> None:
    store.jobs.register([registration(number) for number in range(4)], at=at(0))
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for sequence in range(1, 6):
                store.agent.report(token_of(number), report(sequence), at=at(sequence))
                store.jobs.active()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert failures == []
    assert [len(store.history.samples(str(number))) for number in range(4)] == [5] * 4


def test_that_a_model_is_kept_once_per_change(any_store: Store) -> None:
    any_store.jobs.register([registration(1)], at=at(0))
    grown = dataclasses.replace(MODEL, max_gpus_seen=3)
    for sequence, model in enumerate((MODEL, MODEL, None, grown, grown, MODEL), start=1):
        any_store.agent.report(token_of(1), report(sequence, model=model), at=at(sequence))
    with any_store.database.read() as connection:  # type: ignore[attr-defined]
        seen = connection.execute(
            select(ModelVersionRow.at, ModelVersionRow.max_gpus_seen).order_by(ModelVersionRow.id)
        ).all()
    assert [tuple(row) for row in seen] == [(at(1), 2), (at(4), 3), (at(6), 2)]


def test_that_no_other_module_commits() -> None:
    package = Path(database_module.__file__).parents[1]
    for file in package.rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        assert file.name == "database.py" or ".begin()" not in source, file
        assert ".commit()" not in source, file
