"""A group of one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group whose only member this process is."""
    dist = pytest.importorskip("torch.distributed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
