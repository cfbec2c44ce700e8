"""Two users' jobs in a real PostgreSQL, and a connection with the login of jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pollux_slurm.store.contract.interface import Store
from tests.store.builders import at, observation, registration
from tests.store.postgres import PostgresServer
from tests.store.untrusted_client import Connection, connect


@pytest.fixture
def victims(postgres_store: Store, postgres_url: str) -> Store:
    """A store with jobs 1 (the client's) and 2 (somebody's), both running."""
    store = postgres_store
    store.jobs.register([registration(1), registration(2, user_id=1002, user_name="grace")], at=at(0))
    store.jobs.observe([observation(n, gpus={"n0": 2}) for n in (1, 2)], at=at(1))
    return store


@pytest.fixture
def client(postgres: PostgresServer, victims: Store) -> Iterator[Connection]:
    with connect(postgres) as connection:
        yield connection
