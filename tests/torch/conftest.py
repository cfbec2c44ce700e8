"""Sessions that begin inside of a test leave the logger to pytest, as if a script had its own handler."""

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
