"""One store per test on each backend: SQLite, and a real PostgreSQL where it is installed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.store import open_store
from pollux_slurm.store.contract import Store
from pollux_slurm.store.schema import Base
from tests.store.postgres import PostgresMissingError, PostgresServer, running_postgres

_names = itertools.count()


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


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """Return the URL of a store in PostgreSQL with nothing in it."""
    tables = ", ".join(Base.metadata.tables)
    postgres.sql(f"TRUNCATE {tables} RESTART IDENTITY", database="store")
    return postgres.url("store")


@pytest.fixture
def empty_postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """Return the URL of an empty database in PostgreSQL."""
    name = f"empty_{next(_names)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def any_store_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a fresh store, once on each backend."""
    fixture = "store_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(fixture))


@pytest.fixture(params=["sqlite", "postgresql"])
def any_empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a place for a store, without tables, once on each backend."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    return str(request.getfixturevalue("empty_postgres_url"))


@pytest.fixture
def any_store(any_store_url: str) -> Iterator[Store]:
    """Return a fresh store, open, once on each backend."""
    store = open_store(any_store_url)
    yield store
    store.close()
