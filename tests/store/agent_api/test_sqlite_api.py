"""The API of jobs on SQLite, where that of PostgreSQL refuses reports too (`test_attacks.py`)."""

from __future__ import annotations

import contextlib

import pytest

from pollux_slurm.errors import UnknownJobError
from pollux_slurm.store import open_agent_store
from pollux_slurm.store.contract.interface import Store
from tests.store.builders import at, observation, plan, registration, report, token_of
from tests.store.jobs.test_allocation_intervals import run_missed_in_the_midst


def test_that_a_job_has_no_more_nodes_than_slurm_gave_it(store: Store, store_url: str) -> None:
    store.jobs.register([registration(1), registration(2)], at=at(0))
    store.jobs.observe([observation(1, gpus={"n0": 1, "n1": 1}), observation(2)], at=at(1))
    with contextlib.closing(open_agent_store(store_url)) as jobs:
        jobs.report(token_of(1), report(1, gpus_per_node=(1, 1)), at=at(2))
        jobs.report(token_of(2), report(1, gpus_per_node=(1,)), at=at(2))
        for number, most in ((1, 2), (2, 1)):
            with pytest.raises(UnknownJobError, match=f"reports 3 nodes and was seen on {most}"):
                jobs.report(token_of(number), report(2, gpus_per_node=(1, 1, 1)), at=at(3))
        plan(store, 2, moves_running=False)
        jobs.report(token_of(2), report(2, gpus_per_node=(3, 1)), at=at(4))
    assert store.jobs.get("1").run.gpus_per_node == (1, 1)  # type: ignore[union-attr]


def test_that_a_run_that_accounting_tells_of_late_takes_no_node_from_the_present_one(
    store: Store, store_url: str
) -> None:
    run_missed_in_the_midst(store)
    with contextlib.closing(open_agent_store(store_url)) as jobs:
        jobs.report(token_of(1), report(1, restart_count=2, gpus_per_node=(1, 1)), at=at(412))
    assert store.jobs.get("1").run is not None
