"""What a round's checks say about a job that waits because a move stopped it."""

from __future__ import annotations

import pytest

from pollux_slurm.daemon.observe.cluster_picture import ManagedJob
from pollux_slurm.daemon.obstacles.move_checks import MoveChecks
from pollux_slurm.model import Allocation, JobState, ProblemJob, ReallocationWay
from tests.daemon.builders import NOON, job, node, record, snapshot


@pytest.mark.parametrize(
    ("had", "least", "target", "tried"),
    [
        ({"1": {"n0": 2}}, 1, {"n1": 2}, True),
        ({"1": {"n0": 2}}, 1, {"n1": 3}, False),
        ({"1": {"n0": 2}}, 4, {"n1": 4}, True),
        ({"2": {"n0": 2}}, 1, {"n1": 3}, True),
    ],
)
def test_that_a_job_that_has_lost_its_place_gets_back_no_more_than_it_had(
    had: dict[str, dict[str, int]], least: int, target: dict[str, int], tried: bool
) -> None:
    waiting = job("1", JobState.PENDING)
    checks = MoveChecks(
        snapshot=snapshot([node("n0"), node("n1")], [waiting]),
        waiting=(waiting,),
        managed={"1": ManagedJob(slurm=waiting, record=record("1"))},
        asked={"1": ProblemJob(job_id="1", account="physics", user="ann", min_gpus=least)},
        now=NOON,
        way_to=lambda _job, _target: ReallocationWay.REQUEUE,
        keeps_places=True,
        longest_stop_s=60.0,
        had={number: Allocation.of(gpus) for number, gpus in had.items()},
    )
    found = checks.not_tried("1", Allocation.of(target))
    assert (found is None) is tried
    if found is not None:
        (left_out,) = found.leaves_out
        assert (left_out.num_nodes, left_out.least_gpus, left_out.most_gpus) == (1, 3, None)
