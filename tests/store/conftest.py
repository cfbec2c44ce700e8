"""One store per test on each backend: SQLite, and a real PostgreSQL where it is installed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect

from pollux_slurm.store import open_agent_store, open_store
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.opening import open_database, unchecked_database
from pollux_slurm.store.access.url import parse_store_url
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.store.contract.interface import (
    GenerationRecord,
    GenerationState,
    JobStore,
    Move,
    Poll,
    PromiseRecord,
    Report,
    Store,
)
from pollux_slurm.store.maintenance.administration import add_login
from pollux_slurm.store.schema import Base
from pollux_slurm.store.sql_store import SqlStore
from tests import store_fixtures
from tests.store import centre
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
from tests.store.postgres import PostgresServer, postgres_of_test

_names = itertools.count()
_FIXTURES = {"sqlite": "sqlite", "postgresql": "postgres"}


@pytest.fixture(scope="session")
def postgres(long_store_timeouts: None) -> Iterator[PostgresServer]:
    """Run a private PostgreSQL; skip where there is none; on CI, where it is always installed, fail."""
    with postgres_of_test() as server:
        open_store(server.create_database("store"), create=True).close()
        prepare_logins(server)
        yield server


@pytest.fixture(scope="session")
def postgres_store(postgres: PostgresServer) -> Iterator[Store]:
    """Return the tests' store in PostgreSQL, open: with the daemon's login, and one for jobs."""
    store = StoreOfTwoLogins(postgres)
    yield store
    store.close()


@pytest.fixture
def postgres_url(postgres: PostgresServer, postgres_store: Store) -> str:
    """Return the URL of an empty store in PostgreSQL."""
    wipe(postgres_store)
    return postgres.url("store")


@pytest.fixture
def two_people(postgres: PostgresServer, postgres_store: Store, postgres_url: str) -> Store:
    """A store with a moved job of ada and one of grace, and logins: ada reads, an analyst reads all."""
    for name, role in (("ada", "reader"), ("grace", "reader"), ("the_analyst", "analyst")):
        add_login(postgres.url("store"), name, shared=False, connections=5, roles=(f"pollux_{role}",))
    store = postgres_store
    grace = {"user_id": 1002, "user_name": "grace"}
    jobs = [registration(n, terms={"kind": "gpt2"}, **who) for n, who in ((1, {}), (2, grace))]
    store.jobs.register(jobs, at=at(0))
    store.jobs.observe([observation(n, gpus={"n0": 2}) for n in (1, 2)], at=at(1))
    store.rounds.record(problem_of([1, 2]), decision_of([1, 2]), shadow=False, at=at(5))
    for number in (1, 2):
        store.agent.report(token_of(number, 1000 + number), report(1), at=at(10))
    move_running_job(store)
    return store


@pytest.fixture(scope="module", params=["sqlite_store", "postgres_store"])
def day(request: pytest.FixtureRequest) -> Store:
    """Return a store with the day of `tests.store.centre`, read-only, on each backend."""
    store: Store = request.getfixturevalue(request.param)
    wipe(store)
    centre.fill(store)
    return store


@pytest.fixture(scope="session")
def sqlite_store(shared_store: SqlStore) -> Store:
    """Return the tests' store in SQLite, open."""
    return shared_store


@pytest.fixture
def sqlite_url(shared_store_url: str, clean_store: SqlStore) -> str:
    """Return the URL of an empty store in SQLite."""
    return shared_store_url


class JobsOfOneLogin:
    """The calls of jobs by their login, at the time that the test gives: the server's clock is set to it."""

    def __init__(self, server: PostgresServer, clock: Database) -> None:
        self._jobs, self.clock = open_agent_store(server.url("store", login="jobs")), clock

    def report(self, token: str, report: Report, *, at: datetime) -> int | None:
        set_clock(self.clock, at)
        # Most tests skip the observation that shows the job as running.
        with self.clock.write() as connection:
            connection.exec_driver_sql(
                "UPDATE jobs SET state = 'running' "
                "WHERE token_sha256 = %s AND state = 'pending' AND started_at IS NULL",
                (hash_token(token),),
            )
        return self._jobs.report(token, report, at=at)

    def poll(self, token: str, run_number: int, *, at: datetime) -> Poll:
        set_clock(self.clock, at)
        return self._jobs.poll(token, run_number, at=at)

    def move(self, token: str, request_id: int) -> Move | None:
        return self._jobs.move(token, request_id)

    def promise(self, token: str) -> PromiseRecord | None:
        return self._jobs.promise(token)

    def generation(self, token: str, *, after: int, restart_count: int) -> GenerationRecord | None:
        return self._jobs.generation(token, after=after, restart_count=restart_count)

    def report_ready(self, token: str, member: str, *, number: int, restart_count: int) -> None:
        self._jobs.report_ready(token, member, number=number, restart_count=restart_count)

    def advance_generation(
        self, token: str, number: int, state: GenerationState, *, at: datetime, **said: Any
    ) -> bool:
        set_clock(self.clock, at if at.tzinfo is not None else None)
        return self._jobs.advance_generation(token, number, state, at=at, **said)

    def close(self) -> None:
        self._jobs.close()


class StoreOfTwoLogins(SqlStore):
    """A store with the rights of `pollux_daemon`; the calls of jobs go through their login."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(open_database(server.url("store", login="the_daemon")))
        self.clock = unchecked_database(parse_store_url(server.url("store")), create=False)
        self.agent: JobStore = JobsOfOneLogin(server, self.clock)

    def close(self) -> None:
        super().close()
        self.agent.close()
        self.clock.close()


def prepare_logins(server: PostgresServer) -> None:
    """Make the logins `the_daemon` and `jobs` (shared), and let tests set the clock of "store"."""
    for name, role in (("the_daemon", "pollux_daemon"), ("jobs", "pollux_agent")):
        add_login(server.url("store"), name, shared=name == "jobs", connections=20, roles=(role,))
    server.sql(
        "CREATE TABLE test_clock (at timestamptz); INSERT INTO test_clock VALUES (NULL);"
        "GRANT SELECT ON test_clock TO pollux_owner;",
        database="store",
    )
    prepare_clock(server)


def prepare_clock(server: PostgresServer) -> None:
    """Let tests set the clock of "store", also after its functions were created again."""
    server.sql(
        "CREATE OR REPLACE FUNCTION pollux_clock() RETURNS timestamptz LANGUAGE sql VOLATILE "
        "AS 'SELECT COALESCE(at, clock_timestamp()) FROM public.test_clock'",
        database="store",
    )


def set_clock(database: Database, at: datetime | None) -> None:
    """Set the time of the database's functions to `at`; None for the server's time."""
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE test_clock SET at = %s", (at,))


def wipe(store: Store) -> None:
    """Empty every table: a store that stays open between tests has its statements compiled already."""
    if isinstance(store, StoreOfTwoLogins):
        set_clock(store.clock, None)
        with store.clock.write() as connection:
            # Not TRUNCATE, which creates a hundred files again.
            tables = [table.name for table in reversed(Base.metadata.sorted_tables)]
            empty = [f"DELETE FROM {table}" for table in ("pollux_allowances", *tables)]
            numbers = [
                f"SELECT setval('{name}', 1, false)" for name in inspect(connection).get_sequence_names()
            ]
            connection.exec_driver_sql(";".join(empty + numbers))
        return
    assert isinstance(store, SqlStore)
    store_fixtures.wipe(store)


@pytest.fixture
def empty_postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """Return the URL of an empty database in PostgreSQL."""
    name = f"empty_{next(_names)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def any_store_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty store, once on each backend."""
    return str(request.getfixturevalue(f"{_FIXTURES[request.param]}_url"))


@pytest.fixture(params=["sqlite", "postgresql"])
def any_empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a place for a store, without tables, once on each backend."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    return str(request.getfixturevalue("empty_postgres_url"))


@pytest.fixture
def any_store(request: pytest.FixtureRequest, any_store_url: str) -> Store:
    """Return an empty store, once on each backend."""
    backend = any_store_url.split(":")[0]
    store: Store = request.getfixturevalue(f"{_FIXTURES[backend]}_store")
    return store
