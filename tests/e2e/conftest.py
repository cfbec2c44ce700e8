"""One sandbox of 2 nodes × 4 fake GPUs for all end-to-end tests; store and daemon are each test's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.config import SlurmConfig
from pollux_slurm.slurm import connect
from pollux_slurm.store import open_store
from tests.e2e.user_commands import UserCommands


@pytest.fixture
def user(two_node_sandbox: dict[str, str], tmp_path: Path) -> Iterator[UserCommands]:
    url = f"sqlite:///{tmp_path}/pollux.db"
    made = UserCommands(
        directory=tmp_path,
        slurm=connect(SlurmConfig(), {**os.environ, **two_node_sandbox}),
        slurm_env=two_node_sandbox,
        store=open_store(url, create=True),
        store_url=url,
    )
    yield made
    made.close()
