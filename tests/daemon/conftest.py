"""The small world of each test, on the shared store."""

from __future__ import annotations

import pytest

from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.world import World


@pytest.fixture
def world(clean_store: SqlStore) -> World:
    return World(clean_store)
