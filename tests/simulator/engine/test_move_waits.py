"""How long moves wait for GPUs that others own: each of `a`, `b`, `c` takes 7 s to leave its own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pollux_slurm.simulator.engine.job import GpusByNode
from pollux_slurm.simulator.engine.move_waits import move_waits

LEAVING_S = {"a": 7.0, "b": 7.0, "c": 7.0}


@pytest.mark.parametrize(
    ("before", "after", "free", "waits"),
    [
        ({}, {"a": ((0, 4),)}, [4, 4], {"a": 0}),
        ({"a": ((0, 4),)}, {"a": ((0, 4),)}, [0, 4], {}),
        # Free GPUs go to the first job in order.
        ({"c": ((0, 2),)}, {"a": ((0, 2),), "b": ((0, 2),)}, [2], {"a": 0, "b": 7}),
        # A chain: a leaves for a free node, b follows it, c follows b.
        (
            {"a": ((0, 4),), "b": ((1, 4),)},
            {"c": ((1, 4),), "b": ((0, 4),), "a": ((2, 4),)},
            [0, 0, 4],
            {"a": 0, "b": 7, "c": 14},
        ),
        # A circle: one makes its checkpoint first, the other then finds its GPUs free.
        ({"a": ((0, 4),), "b": ((1, 4),)}, {"a": ((1, 4),), "b": ((0, 4),)}, [0, 0], {"a": 7, "b": 0}),
        # A job does not wait for its own GPUs.
        ({"a": ((0, 2),)}, {"a": ((0, 4),)}, [2], {"a": 0}),
        # A job that shrinks frees GPUs, too, and so does a paused one.
        ({"a": ((0, 4),)}, {"a": ((0, 1),), "b": ((0, 3),)}, [0], {"a": 0, "b": 7}),
        ({"a": ((0, 4),)}, {"b": ((0, 1),)}, [0], {"b": 7}),
    ],
)
def test_that_jobs_wait_for_the_owners_of_their_gpus(
    before: Mapping[str, GpusByNode],
    after: Mapping[str, GpusByNode],
    free: list[int],
    waits: Mapping[str, float],
) -> None:
    found = move_waits(before, after, free, LEAVING_S)
    assert {name: wait_s for name, (wait_s, _) in found.items()} == waits


def test_that_the_job_that_leaves_first_in_a_circle_waits_in_the_queue() -> None:
    """b is out at 7 s, a, who waits for that, at 14 s: b's new GPUs are free 7 s after it left."""
    before: Mapping[str, GpusByNode] = {"a": ((0, 4),), "b": ((1, 4),)}
    after: Mapping[str, GpusByNode] = {"a": ((1, 4),), "b": ((0, 4),)}
    assert move_waits(before, after, [0, 0], LEAVING_S) == {"a": (7, 0), "b": (0, 7)}


def test_that_a_wing_that_is_replaced_frees_its_gpus_once_the_new_one_has_its_own() -> None:
    """On six GPUs a has two, and gets three others: one is left, and b needs the two that a leaves."""
    before: Mapping[str, GpusByNode] = {"a": ((0, 2),)}
    after: Mapping[str, GpusByNode] = {"a": ((0, 3),), "b": ((0, 3),)}
    assert move_waits(before, after, [4], LEAVING_S, {"a": {0: 0}}) == {"a": (0, 0), "b": (7, 0)}
    assert move_waits(before, after, [4], LEAVING_S) == {"a": (0, 0), "b": (0, 0)}, "a keeps two of its three"


def test_that_a_chain_longer_than_the_recursion_limit_is_resolved() -> None:
    before = {f"j{index}": ((index, 1),) for index in range(3000)}
    after = {f"j{index}": ((index + 1, 1),) for index in range(3000)}
    waits = move_waits(before, after, [0] * 3000 + [1], dict.fromkeys(before, 1.0))
    assert waits["j0"] == (2999, 0)
