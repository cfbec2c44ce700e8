"""A store with a story in it."""

from __future__ import annotations

import pytest

from pollux_slurm.store import open_store
from tests.report.stories import fill


@pytest.fixture
def url(store_url: str) -> str:
    """The URL of a store with two jobs, one of which was moved."""
    store = open_store(store_url)
    fill(store)
    store.close()
    return store_url
