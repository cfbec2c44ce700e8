from __future__ import annotations

import dataclasses
import math
from datetime import timedelta
from typing import Any

import pytest

from pollux_slurm.daemon.decide import draining_nodes, problem_building
from pollux_slurm.daemon.observe import cluster_picture
from pollux_slurm.model import Allocation, SlurmNode
from pollux_slurm.policy import decide
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from tests.daemon.builders import MODEL, NOON, TERMS, job, node, record, snapshot

LARGEST = dataclasses.replace(TERMS, max_gpus=4)


def moved(*others: SlurmNode, on: dict[str, int] | None = None, **changes: Any) -> Allocation:
    """Return where a job of at most four GPUs on n0, which drains, is after a round."""
    where = {"n0": 4} if on is None else on
    drained = [
        node(name, used=gpus, available=name != "n0", draining=name == "n0") for name, gpus in where.items()
    ]
    seen = snapshot([*drained, *others], [job("1", on=where, **changes)])
    trained = dataclasses.replace(MODEL, max_gpus_seen=4)
    picture = cluster_picture.build_picture(seen, [record("1", terms=LARGEST, model=trained)])
    problem = problem_building.build_problem(picture, now=NOON, default_restart_delay_s=30)
    decision = decide(problem)
    assert decision.allocation("1") == Allocation.of(where)
    return draining_nodes.leave_draining_nodes(problem, decision, picture, now=NOON).allocation("1")


def test_that_a_job_at_its_largest_size_leaves_a_draining_node_for_an_equal_one() -> None:
    assert moved(node("n1")) == Allocation.of({"n1": 4})
    # Where the fewest GPUs are left over.
    assert moved(node("n1", gpus=8, num_cpus=16), node("n2")) == Allocation.of({"n2": 4})
    # It runs since five minutes.
    assert moved(node("n1"), time_limit_s=300 + 301) == Allocation.of({"n1": 4})


@pytest.mark.parametrize(
    ("other", "changes"),
    [
        (node("n1", used=1), {}),
        (node("n1", gpu_type="a100"), {}),
        (node("n1", available=False), {}),
        (node("n1", partitions=("other",)), {}),
        (node("n1", used_cpus=5), {}),
        (node("n1", reserved_from=NOON + timedelta(hours=1)), {}),
        (node("n1"), {"time_limit_s": 300 + 299}),
        (node("n1"), {"unschedulable_reason": "submitted with --no-requeue"}),
        (node("n1"), {"comment": encode_comment("", dataclasses.replace(LARGEST, min_run_s=math.inf))}),
    ],
    ids=["smaller", "type", "down", "partition", "CPUs", "reserved", "ends soon", "fixed", "held off"],
)
def test_that_it_stays_without_an_equal_place_or_time_to_gain_from_it(
    other: SlurmNode, changes: dict[str, Any]
) -> None:
    assert moved(other, **changes) == Allocation.of({"n0": 4})
