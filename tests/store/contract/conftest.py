"""A store with a job that runs."""

from __future__ import annotations

import pytest

from pollux_slurm.store.contract.interface import Store
from tests.store.builders import at, observation, registration, report, token_of


@pytest.fixture
def running(any_store: Store) -> Store:
    """A store in which job 1 runs on two GPUs of n0 and has reported once."""
    any_store.jobs.register([registration(1)], at=at(0))
    any_store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(2))], at=at(5))
    any_store.agent.report(token_of(1), report(1, first_step_s=3.0), at=at(10))
    return any_store
