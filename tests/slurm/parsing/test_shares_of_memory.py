"""What a job that takes all memory of its nodes counts as: a share of it for each GPU."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pollux_slurm.model import JobState
from pollux_slurm.slurm.parsing.shares_of_memory import takes_whole_memory, with_shares_of_memory
from tests.daemon.builders import NOON, job, node, snapshot


@pytest.mark.parametrize(
    ("changes", "share_mb"),
    [
        ({"on": {"n0": 1}}, 1000),  # the smallest share of n0, m0
        ({"state": JobState.PENDING, "requested_gpus": 3}, 1000),
        ({"on": {"n0": 1}, "excluded_nodes": ("m0",)}, 2000),
        ({"on": {"n0": 1}, "partition": "nowhere"}, None),
    ],
)
def test_that_each_gpu_brings_its_part_of_the_nodes_that_the_job_may_use(
    changes: dict[str, Any], share_mb: int | None
) -> None:
    # A reservation ahead does not change what a node has.
    nodes = [node("n0", reserved_from=NOON + timedelta(days=7)), node("m0", gpus=8), node("c0", gpus=0)]
    given = job("1", **{"state": JobState.RUNNING, "memory_per_gpu_mb": None, **changes})
    (found,) = with_shares_of_memory(snapshot(nodes, [given])).jobs
    assert found.memory_per_gpu_mb == share_mb
    assert found.memory_by_node is (share_mb is not None)


@pytest.mark.parametrize(
    "changes",
    [{"memory_per_gpu_mb": 100}, {"comment": "mine"}, {"requested_gpus": 0}, {"state": JobState.COMPLETED}],
)
def test_that_rigid_jobs_and_those_that_name_an_amount_stay_what_they_are(changes: dict[str, Any]) -> None:
    given = job("1", **{"memory_per_gpu_mb": None, **changes})
    assert not takes_whole_memory(given)
    shown = snapshot([node("n0")], [given])
    assert with_shares_of_memory(shown) == shown
