"""One store per test on each backend: SQLite, and a real PostgreSQL where it is installed."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.store import open_store
from pollux_slurm.store.contract import Store
from pollux_slurm.store.schema import Base
from tests.store.postgres import PostgresMissingError, PostgresServer, running_postgres

_names = itertools.count()
_FIXTURES = {"sqlite": "sqlite", "postgresql": "postgres"}


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Run a private PostgreSQL; skip where there is none, but on CI, where it is always installed, fail."""
    try:
        with running_postgres() as server:
            open_store(server.create_database("store"), create=True).close()
            yield server
    except PostgresMissingError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def postgres_store(postgres: PostgresServer) -> Iterator[Store]:
    """Return the tests' store in PostgreSQL, open."""
    store = open_store(postgres.url("store"))
    yield store
    store.close()


@pytest.fixture
def postgres_url(postgres: PostgresServer, postgres_store: Store) -> str:
    """Return the URL of a store in PostgreSQL with nothing in it."""
    wipe(postgres_store)
    return postgres.url("store")


@pytest.fixture(scope="session")
def shared_sqlite_url(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("shared") / "pollux.db"
    shutil.copyfile(store_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def sqlite_store(shared_sqlite_url: str) -> Iterator[Store]:
    """Return the tests' store in SQLite, open."""
    store = open_store(shared_sqlite_url)
    yield store
    store.close()


@pytest.fixture
def sqlite_url(shared_sqlite_url: str, sqlite_store: Store) -> str:
    """Return the URL of a store in SQLite with nothing in it."""
    wipe(sqlite_store)
    return shared_sqlite_url


def wipe(store: Store) -> None:
    """Empty every table: a store that stays open between tests has its statements compiled already."""
    with store._database.write() as connection:  # type: ignore[attr-defined]
        if connection.dialect.name == "postgresql":
            tables = ", ".join(Base.metadata.tables)
            connection.exec_driver_sql(f"TRUNCATE {tables} RESTART IDENTITY")
            return
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(table.delete())


@pytest.fixture
def empty_postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """Return the URL of an empty database in PostgreSQL."""
    name = f"empty_{next(_names)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def any_store_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a store with nothing in it, once on each backend."""
    return str(request.getfixturevalue(f"{_FIXTURES[request.param]}_url"))


@pytest.fixture(params=["sqlite", "postgresql"])
def any_empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a place for a store, without tables, once on each backend."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    return str(request.getfixturevalue("empty_postgres_url"))


@pytest.fixture
def any_store(request: pytest.FixtureRequest, any_store_url: str) -> Store:
    """Return a store with nothing in it, open, once on each backend."""
    backend = any_store_url.split(":")[0]
    store: Store = request.getfixturevalue(f"{_FIXTURES[backend]}_store")
    return store
