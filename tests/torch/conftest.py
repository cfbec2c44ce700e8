"""A group of one process; and the logger is left to pytest, as if a script had a handler of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _own_handler() -> Iterator[None]:
    logger, handler = logging.getLogger("pollux_slurm"), logging.NullHandler()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group whose only member this process is."""
    dist = pytest.importorskip("torch.distributed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
