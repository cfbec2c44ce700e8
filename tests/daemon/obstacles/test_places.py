"""Whether a running job may be moved by requeue beside what waits, its limits, and its own end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pollux_slurm.daemon.obstacles import places
from pollux_slurm.model import Allocation, JobState, SlurmJob
from tests.daemon.builders import NOON, job, node, snapshot

FULL = [node("n0", used=4), node("n1", used=4)]


def mine(on: dict[str, int] | None = None, **changes: Any) -> SlurmJob:
    return job("1", on=on or {"n0": 4}, time_limit_s=3600.0, started_at=NOON, **changes)


def waits(number: str = "9", *, gpus: int = 1, nodes: int = 1, **changes: Any) -> SlurmJob:
    fields = {"requested_gpus": gpus, "num_nodes": nodes, "num_cpus": gpus, "reason": "Resources"}
    return job(number, JobState.PENDING, **{**fields, **changes})


@pytest.mark.parametrize(
    ("other", "loses"),
    [
        (waits(), True),
        (waits(gpus=4), True),
        (waits(gpus=0, num_cpus=8), True),
        (waits(gpus=8, nodes=2), False),
        (waits(gpus=8), False),
        (waits(held=True), False),
        (waits(blocked_because="Dependency"), False),
        (waits(begins_at=NOON + timedelta(hours=1)), False),
        (waits(partition="other"), False),
        (waits(required_nodes=("n1",)), False),
        (job("9", JobState.RUNNING, on={"n1": 4}), False),
    ],
)
def test_that_a_place_is_lost_only_to_a_job_that_could_start_there(other: SlurmJob, loses: bool) -> None:
    seen = snapshot(FULL, [mine(), other])
    because = places.loses_place_because(mine(), places.waiting_jobs(seen), seen)
    assert (because is not None) == loses


def test_that_a_wide_job_takes_what_is_left_beside_what_is_free() -> None:
    nodes, wide = [node("n1"), node("n0", used=4), node("n2", used=4)], waits("8", gpus=8, nodes=2)
    seen = snapshot(nodes, [mine(), waits("7", gpus=12, nodes=3), waits("6", gpus=8, nodes=2), wide])
    because = places.loses_place_because(mine(), places.waiting_jobs(seen), seen)
    assert because is not None
    assert "job 6" in because
    assert places.loses_place_because(mine({"n2": 1}), (wide,), seen) is None


@pytest.mark.parametrize(
    ("waiting", "reserved"),
    [
        ([waits("8", gpus=8, nodes=2)], "n0"),
        ([waits("8", gpus=12, nodes=3)], "n0 n1 n2"),
        ([waits("8", gpus=16, nodes=2)], "n0"),
        ([waits("8", gpus=2), waits("9", gpus=12, nodes=3, priority=7)], "n0 n1 n2"),
        ([waits("8", gpus=2), waits("9", gpus=12, nodes=3)], "n0"),
        ([waits("8", gpus=12, nodes=3, held=True)], ""),
        ([waits("8", gpus=1, partition="other")], ""),
    ],
    ids=["two others", "all", "too small", "first by priority", "behind", "held", "elsewhere"],
)
def test_that_nobody_starts_beside_a_reserved_place_on_what_the_first_job_waits_for(
    waiting: list[SlurmJob], reserved: str
) -> None:
    seen = snapshot([*FULL, node("n2")], [mine(), *waiting])
    found = places.nodes_to_reserve("1", [FULL[0]], seen)
    assert " ".join(one.name for one in found) == reserved


@pytest.mark.parametrize(
    ("reserved", "in_s", "left_s", "stays"),
    [
        ("n0", 60, 3600, True),
        ("n0", -60, None, True),
        ("n0", 600, 3600, False),
        ("n0", 200, 60, False),
        ("n1", 60, 3600, False),
    ],
    ids=["begins meanwhile", "has begun", "begins later", "it ends before", "of another node"],
)
def test_that_a_job_does_not_leave_a_node_to_which_it_could_not_return(
    reserved: str, in_s: float, left_s: float | None, stays: bool
) -> None:
    nodes = [
        node(name, used=4, reserved_from=NOON + timedelta(seconds=in_s) if name == reserved else None)
        for name in ("n0", "n1")
    ]
    running = job("1", on={"n0": 4}, started_at=NOON, time_limit_s=left_s)
    because = places.cannot_return_because(running, snapshot(nodes, [running]), longest_s=300.0)
    assert (because is not None) == stays


def test_that_what_waits_for_the_same_nodes_in_another_partition_is_beside_a_job() -> None:
    nodes = [node("n0", partitions=("main", "short")), node("n1", partitions=("long",))]
    wing = waits("8", partition="short", priority=7)
    queue = [
        waits("2", partition="main", priority=3),
        waits("3", partition="short", priority=5),
        waits("4", partition="long", priority=9),
        waits("5", partition="long,short", priority=6),
        job("6", partition="short", priority=8, wings=(wing,)),
        waits("7", partition="short", priority=None),
    ]
    found = places.priorities_beside(mine(), snapshot(nodes, [mine(priority=1), *queue]))
    assert found == {"2": 3, "3": 5, "5": 6, "8": 7}


HOG = job("5", on={"n1": 4}, started_at=NOON, time_limit_s=7200.0)


@pytest.mark.parametrize(
    ("starts_after_s", "gpus", "target", "delays"),
    [
        (1800, 4, {"n0": 4}, True),
        (1800, 1, {"n0": 3}, False),
        (1800, 1, {"n0": 4}, True),
        (3600, 4, {"n0": 4}, False),
        (3540, 4, {"n0": 4}, False),
        (None, 4, {"n0": 4}, False),
        (1800, 4, {"n0": 1}, False),
    ],
    ids=["planned", "beside it", "not beside it", "ends before", "to a minute", "no plan", "held before"],
)
def test_that_gpus_planned_for_others_are_taken_only_until_then(
    starts_after_s: float | None, gpus: int, target: dict[str, int], delays: bool
) -> None:
    starts_at = None if starts_after_s is None else NOON + timedelta(seconds=starts_after_s)
    running, other = mine({"n0": 2}), waits(gpus=gpus, expected_start_at=starts_at)
    seen = snapshot([node("n0", used=2), node("n1", used=4)], [running, HOG, other])
    waiting = places.waiting_jobs(seen)
    because = places.delays_because(running, Allocation.of(target), waiting, seen)
    assert (because is not None) == delays
    assert places.delays_because(running, Allocation.of(target), waiting, seen, {other.job_id}) is None


@pytest.mark.parametrize(
    ("left_s", "deadline_s", "moves"),
    [
        (3600, None, True),
        (100, None, True),
        (29, None, False),
        (None, None, True),
        (3600, 4500, True),
        (3600, 3800, False),
        (None, 1e6, False),
    ],
)
def test_that_a_job_near_its_end_or_its_deadline_stays(
    left_s: float | None, deadline_s: float | None, moves: bool
) -> None:
    running = job(
        "1",
        on={"n0": 4},
        started_at=NOON,
        time_limit_s=left_s,
        deadline_at=None if deadline_s is None else NOON + timedelta(seconds=deadline_s),
    )
    because = places.ends_too_soon_because(running, NOON, move_s=30.0, longest_s=210.0)
    assert (because is None) == moves


@pytest.mark.parametrize(
    ("changes", "frees"),
    [
        ({"reason": "QOSMaxJobsPerUserLimit"}, True),
        ({"reason": "QOSMaxJobsPerUserLimit", "user_id": 7}, False),
        ({"reason": "QOSMaxJobsPerUserLimit", "qos": "other"}, False),
        ({"reason": "QOSMaxGRESPerUser"}, True),
        ({"reason": "AssocMaxJobsLimit"}, True),
        ({"reason": "JobArrayTaskLimit", "array_id": "1"}, True),
        ({"reason": "JobArrayTaskLimit", "array_id": "2"}, False),
        ({"reason": "AssocGrpJobsLimit", "user_id": 7}, True),
        ({"reason": "AssocGrpJobsLimit", "account": "other"}, False),
        ({"reason": "QOSGrpGRES", "user_id": 7, "requested_gpus": 4}, True),
        ({"reason": "QOSGrpGRES", "user_id": 7, "requested_gpus": 400}, False),
        ({"reason": "MaxGRESPerAccount", "user_id": 7, "requested_gpus": 4}, True),
        ({"reason": "MaxGRESPerAccount", "user_id": 7, "requested_gpus": 400}, False),
        ({"reason": "MaxGRESPerAccount", "user_id": 7, "qos": "other"}, False),
        ({"reason": "QOSMaxJobsPerUserLimit", "held": True}, False),
        ({"reason": "Resources"}, False),
        ({"reason": "Priority"}, False),
    ],
)
def test_that_a_slot_is_freed_for_a_job_that_the_same_limit_keeps_waiting(
    changes: dict[str, Any], frees: bool
) -> None:
    running = mine(array_id="1")
    fields = {"gpus": 1, **changes}
    other = waits(**{key: value for key, value in fields.items() if key != "gpus"})
    because = places.frees_slot_because(running, places.waiting_jobs(snapshot(FULL, [running, other])))
    assert (because is not None) == frees
