"""Fixtures for every test that needs a store: a real one, in SQLite, fresh for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.store import open_store
from pollux_slurm.store.contract import Store


@pytest.fixture(scope="session")
def store_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store's file with its tables made, to be copied: faster than to make them for each test."""
    path = tmp_path_factory.mktemp("store") / "template.db"
    open_store(f"sqlite:///{path}", create=True).close()
    return path


@pytest.fixture
def store_url(store_template: Path, tmp_path: Path) -> str:
    """Return the URL of a fresh store with its tables made."""
    path = tmp_path / "pollux.db"
    shutil.copyfile(store_template, path)
    path.chmod(0o600)
    return f"sqlite:///{path}"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """Return the store at `store_url`, open."""
    store = open_store(store_url)
    yield store
    store.close()
