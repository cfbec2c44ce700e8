"""Fixtures for every test that needs a store: a real one, in SQLite, fresh for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.store import open_store
from pollux_slurm.store.contract import Store


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """Return the URL of a fresh store with its tables made."""
    url = f"sqlite:///{tmp_path / 'pollux.db'}"
    open_store(url, create=True).close()
    return url


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """Return the store at `store_url`, open."""
    store = open_store(store_url)
    yield store
    store.close()
