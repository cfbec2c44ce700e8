"""The harness of each test, on the shared store."""

from __future__ import annotations

import pytest

from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.harness import Harness


@pytest.fixture
def harness(clean_store: SqlStore) -> Harness:
    return Harness(clean_store)
