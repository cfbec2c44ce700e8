"""Rules of the plain types."""

from __future__ import annotations

import pytest

from pollux_slurm.model import Allocation, Configuration, JobShape


def test_that_an_allocation_is_the_same_whatever_the_order_of_its_nodes() -> None:
    allocation = Allocation.of({"n1": 1, "n0": 4, "n2": 0})
    assert allocation == Allocation((("n0", 4), ("n1", 1)))
    assert allocation.configuration == Configuration(num_nodes=2, num_gpus=5)
    assert str(allocation) == "n0:4+n1:1"


def test_that_an_empty_allocation_is_false_and_named_none() -> None:
    assert not Allocation()
    assert str(Allocation()) == "none"
    assert Allocation.of({"n0": 0}) == Allocation()


def test_that_negative_gpus_are_rejected() -> None:
    with pytest.raises(ValueError, match="negative"):
        Allocation.of({"n0": -1})


def test_that_a_shape_has_gpus_per_node_only_where_they_are_equal() -> None:
    even = JobShape.of(Allocation.of({"n0": 2, "n1": 2}), cpus_per_gpu=3)
    assert (even.num_gpus, even.num_nodes, even.gpus_per_node, even.nodes) == (4, 2, 2, ("n0", "n1"))
    uneven = JobShape.of(Allocation.of({"n0": 4, "n1": 1}))
    assert uneven.gpus_per_node is None
