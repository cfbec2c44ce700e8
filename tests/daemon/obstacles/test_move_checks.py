"""What a round's checks say about a job that waits because a move stopped it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from pollux_slurm.daemon.observe.cluster_picture import ManagedJob
from pollux_slurm.daemon.obstacles.move_checks import MoveChecks
from pollux_slurm.model import Allocation, JobState, ProblemJob, ReallocationWay, SlurmJob
from tests.daemon.builders import NOON, job, node, record, snapshot


def checks(
    had: dict[str, dict[str, int]], *, least: int = 1, others: Sequence[SlurmJob] = (), num_nodes: int = 2
) -> MoveChecks:
    waiting = job("1", JobState.PENDING)
    nodes = [node(f"n{number}") for number in range(num_nodes)]
    return MoveChecks(
        snapshot=snapshot(nodes, [waiting, *others]),
        waiting=(waiting, *(one for one in others if one.state is JobState.PENDING)),
        managed={"1": ManagedJob(slurm=waiting, record=record("1"))},
        asked={"1": ProblemJob(job_id="1", account="physics", user="ann", min_gpus=least)},
        now=NOON,
        way_to=lambda _job, _target: ReallocationWay.REQUEUE,
        keeps_places=True,
        longest_stop_s=60.0,
        had={number: Allocation.of(gpus) for number, gpus in had.items()},
    )


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
    found = checks(had, least=least).not_tried("1", Allocation.of(target))
    assert (found is None) is tried
    if found is not None:
        assert [(one.num_nodes, one.least_gpus, one.most_gpus) for one in found.leaves_out] == [
            (1, 3, None),
            (2, 3, None),
        ], "more on any number of nodes: decisions are made again a few times only"


@pytest.mark.parametrize(("target", "tried"), [({"n0": 2}, True), ({"n1": 2}, False)])
def test_that_a_job_that_has_lost_its_place_takes_no_gpus_that_are_planned_for_another(
    target: dict[str, int], tried: bool
) -> None:
    """It starts before all that wait; what it had was its own before the move."""
    wide = job(
        "5",
        JobState.PENDING,
        requested_gpus=8,
        num_nodes=2,
        expected_start_at=NOON + timedelta(seconds=60),
    )
    found = checks({"1": {"n0": 2}}, others=[wide]).not_tried("1", Allocation.of(target))
    assert (found is None) is tried
    if found is not None:
        assert "job 5 is to start there" in found.because
