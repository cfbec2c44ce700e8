"""Fixtures for every test that needs a store: a real one, in SQLite, empty.

`clean_store` is one store for all, emptied for each test: it stays open, so that its statements are compiled
once. `store` is a file of the test's own, for tests that move it, close it or let others open it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from pollux_slurm.store import open_store

if TYPE_CHECKING:
    from pollux_slurm.store.contract.interface import Store
    from pollux_slurm.store.sql_store import SqlStore


@pytest.fixture(scope="session")
def long_store_timeouts() -> Iterator[None]:
    """Give stores of tests timeouts that no busy machine reaches."""
    from pollux_slurm.store.access import engine

    with pytest.MonkeyPatch.context() as patched:
        for name in ("BUSY_TIMEOUT_S", "IDLE_IN_TRANSACTION_S", "CONNECT_TIMEOUT_S"):
            patched.setattr(engine, name, 600)
        yield


@pytest.fixture(scope="session")
def store_template(tmp_path_factory: pytest.TempPathFactory, long_store_timeouts: None) -> Path:
    """Return a store's file with its tables made, to be copied: faster than to make them for each test."""
    path = tmp_path_factory.mktemp("store") / "template.db"
    open_store(f"sqlite:///{path}", create=True).close()
    return path


@pytest.fixture
def store_url(store_template: Path, tmp_path: Path) -> str:
    """Return the URL of a fresh store with its tables made."""
    return copied(store_template, tmp_path / "pollux.db")


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """Return the store at `store_url`, open."""
    store = open_store(store_url)
    yield store
    store.close()


@pytest.fixture(scope="session")
def shared_store_url(store_template: Path) -> Iterator[str]:
    """Return the URL of the store for all tests: in memory, where a commit waits for no disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="pollux-test-", dir=memory if os.access(memory, os.W_OK) else None
    ) as folder:
        yield copied(store_template, Path(folder) / "pollux.db")


@pytest.fixture(scope="session")
def shared_store(shared_store_url: str) -> Iterator[SqlStore]:
    """Return the store at `shared_store_url`, open, with whatever the last test has left in it."""
    store = open_store(shared_store_url)
    yield cast("SqlStore", store)
    store.close()


@pytest.fixture
def clean_store(shared_store: SqlStore) -> SqlStore:
    """Return the shared store empty."""
    wipe(shared_store)
    return shared_store


def copied(template: Path, path: Path) -> str:
    """Copy a store's file; return the URL of the copy, which its owner may read only."""
    shutil.copyfile(template, path)
    path.chmod(0o600)
    return f"sqlite:///{path}"


def wipe(store: SqlStore) -> None:
    """Empty every table; ids start from 1 again, because SQLite derives them from the existing rows."""
    from pollux_slurm.store.schema import Base

    with store.database.write() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(table.delete())
