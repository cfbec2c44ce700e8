"""The application over a store with a story in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from pollux_slurm.web.app import Source, make_app
from pollux_slurm.web.guard import LOOPBACK
from pollux_slurm.web.server import opened_source
from tests.report.stories import filled_store
from tests.store.builders import at


@pytest.fixture(scope="session")
def story_url(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a store that no test writes to."""
    return filled_store(store_template, tmp_path_factory.mktemp("web"))


@pytest.fixture(scope="module")
def source(story_url: str) -> Iterator[Source]:
    """The store, two minutes after the story's beginning."""
    with opened_source(story_url) as opened:
        yield replace(opened, clock=lambda: at(120))


@pytest.fixture(scope="module")
def client(source: Source) -> TestClient:
    return TestClient(make_app(source, hosts=LOOPBACK, token=None), base_url="http://127.0.0.1:8265")
