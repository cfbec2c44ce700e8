"""A working directory on the sandbox of two nodes with four fake GPUs each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.submit_directory import SubmitDirectory, make_submit_directory


@pytest.fixture
def submit_dir(two_node_sandbox: dict[str, str], tmp_path: Path) -> Iterator[SubmitDirectory]:
    made = make_submit_directory(tmp_path / "it's a directory", two_node_sandbox)
    yield made
    for job_id in made.jobs:
        made.slurm.cancel(job_id)
