"""Rounds with values that no database can store unchanged are recorded."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pollux_slurm.model import Problem
from pollux_slurm.policy import decide
from pollux_slurm.store import open_store
from pollux_slurm.store.maintenance.administration import init_store
from tests.policy.builders import job, node, problem
from tests.store.builders import at, registration

LONG = "x" * 2000


@pytest.mark.parametrize(
    "one",
    [
        problem((node("n0", gpu_type="a\udc80"), node("n1", gpu_type="a\udc81")), job("1")),
        problem((node("n0", gpu_type=LONG + "a"), node("n1", gpu_type=LONG + "b")), job("1")),
        problem((node("n0"),), job("1", weight=math.nan)),
        problem((node("n0"),), job("1", {"n0": 2}, age_s=math.inf)),
    ],
    ids=["halves", "long", "nan", "infinite"],
)
def test_that_a_round_with_odd_values_is_recorded_and_replayed(tmp_path: Path, one: Problem) -> None:
    url = f"sqlite:///{tmp_path / 'pollux.db'}"
    init_store(url)
    store = open_store(url)
    try:
        store.jobs.register([registration(1)], at=at(0))
        found = decide(one)
        round_id = store.rounds.record(one, found, shadow=False, at=at(5))
        again, decision = store.rounds.problem(round_id)
        assert decision == found
        assert decide(again) == found
    finally:
        store.close()
