"""Shapes of allocations, and the jobs that they serve in a cluster of many nodes."""

from __future__ import annotations

import pytest

from pollux_slurm.model import Allocation, NodeCapacity, Problem, ProblemJob
from pollux_slurm.policy import decide
from pollux_slurm.policy.problem.allocation_shapes import MANY_NODES, even_shapes
from tests.policy.builders import job


def nodes(count: int, num_gpus: int, prefix: str = "n") -> tuple[NodeCapacity, ...]:
    return tuple(
        NodeCapacity(name=f"{prefix}{index:03}", num_gpus=num_gpus, num_cpus=64, memory_mb=512_000)
        for index in range(count)
    )


@pytest.mark.parametrize("count", [MANY_NODES, MANY_NODES + 1])
def test_that_a_minimum_is_served_on_parts_of_nodes_that_cpus_leave(count: int) -> None:
    wide = ProblemJob(job_id="1", min_gpus=64, cpus_per_gpu=16)
    (found,) = decide(Problem(nodes=nodes(count, 8), jobs=(wide,))).jobs
    assert [gpus for _, gpus in found.allocation.gpus_by_node] == [4] * 16


@pytest.mark.parametrize("count", [MANY_NODES - 1, MANY_NODES])
def test_that_a_minimum_is_served_on_two_nodes_if_the_only_large_one_is_taken(count: int) -> None:
    taken = ProblemJob(job_id="0", current=Allocation.of({"big000": 8}), pinned=True)
    problem = Problem(
        nodes=(*nodes(count, 4), *nodes(1, 8, "big")), jobs=(taken, ProblemJob(job_id="1", min_gpus=6))
    )
    assert [gpus for _, gpus in decide(problem).allocation("1").gpus_by_node] == [3, 3]


def test_that_a_job_grows_over_parts_of_many_nodes_that_memory_leaves() -> None:
    one = job("1", memory_per_gpu_mb=80_000)
    (found,) = decide(Problem(nodes=nodes(MANY_NODES + 1, 8), jobs=(one,))).jobs
    assert found.allocation.num_gpus > 8
    assert {gpus for _, gpus in found.allocation.gpus_by_node} == {6}


def test_that_a_minimum_has_every_equal_share_and_a_maximum_the_fewest_nodes() -> None:
    sizes = [8] * (MANY_NODES + 1)
    found = even_shapes(sizes, 12, [6, 12], minimums=[6])
    assert [shape for shape in found if shape[0] > 1] == [(2, 3), (2, 6), (3, 2), (6, 1)]
