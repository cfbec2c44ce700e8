"""A working directory on the sandbox of two nodes with four fake GPUs each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.place import Place, a_place


@pytest.fixture
def place(two_node_sandbox: dict[str, str], tmp_path: Path) -> Iterator[Place]:
    made = a_place(tmp_path / "it's a place", two_node_sandbox)
    yield made
    for job_id in made.jobs:
        made.slurm.cancel(job_id)
