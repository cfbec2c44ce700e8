"""GPUs by who has them, and those that are idle while adaptive jobs wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.daemon.service.gpu_metrics import gpus_by_state, idle_while_waiting
from pollux_slurm.model import ClusterSnapshot, JobState, SlurmNode
from tests.daemon.builders import NOON, TERMS, job, node, record


def picture(nodes: list[SlurmNode], *managed: ManagedJob) -> Picture:
    shown = tuple(one.slurm for one in managed)
    return Picture(
        snapshot=ClusterSnapshot(read_at=NOON, nodes=tuple(nodes), jobs=shown), managed=managed, nodes=()
    )


def waiting(job_id: str = "1", *, most: int | None = None, least: int = 1, **changes: Any) -> ManagedJob:
    because = changes.pop("not_moved_because", None)
    terms = replace(TERMS, min_gpus=least, max_gpus=most)
    return ManagedJob(
        slurm=job(job_id, JobState.PENDING, **changes),
        record=record(job_id, terms=terms),
        not_moved_because=because,
    )


def test_that_every_gpu_counts_once_by_state_and_type() -> None:
    nodes = [
        node("n0", used=3),
        node("n1", gpus=8, used=1, available=False, gpu_type="a100"),
        node("n2", gpu_type=None),
    ]
    runs = ManagedJob(slurm=job("1", on={"n0": 2}), record=record("1"))
    found = gpus_by_state(picture(nodes, runs))
    assert {key: count for key, count in found.items() if count} == {
        ("adaptive", "t4"): 2,
        ("other", "t4"): 1,
        ("free", "t4"): 1,
        ("other", "a100"): 1,
        ("unavailable", "a100"): 7,
        ("free", ""): 4,
    }
    assert found["free", "a100"] == 0
    assert ("free", "a100") in found, "a series that ends would be a gap"


def test_that_a_job_that_ended_between_the_reads_is_not_counted_twice() -> None:
    runs = ManagedJob(slurm=job("1", on={"n0": 4}), record=record("1"))
    found = gpus_by_state(picture([node("n0", used=1)], runs))
    assert (found["adaptive", "t4"], found["other", "t4"], found["free", "t4"]) == (1, 0, 3)


@pytest.mark.parametrize(
    ("one", "idle"),
    [
        (waiting(), 5),
        (waiting(most=2), 2),
        (waiting(least=6), 0),
        (waiting(requested_gpu_type="a100"), 0),
        (waiting(partition="other"), 0),
        (waiting(held=True), 0),
        (waiting(blocked_because="a dependency"), 0),
        (waiting(unschedulable_reason="a job array"), 0),
        (waiting(not_moved_because="its owner drained it"), 0),
        (ManagedJob(slurm=job("1", on={"n0": 1}), record=record("1")), 0),
    ],
)
def test_that_gpus_are_idle_only_beside_a_job_that_could_run_on_them(one: ManagedJob, idle: int) -> None:
    nodes = [node("n0", used=3), node("n1"), node("n2", available=False)]
    assert idle_while_waiting(picture(nodes, one), ()) == idle


def test_that_a_job_that_this_round_moves_does_not_wait() -> None:
    nodes = [node("n0", used=3), node("n1")]
    both = picture(nodes, waiting("1", most=1), waiting("2", most=2))
    assert idle_while_waiting(both, ()) == 3
    assert idle_while_waiting(both, {"1"}) == 2
    assert idle_while_waiting(both, {"1", "2"}) == 0
