"""Which anchors leave their nodes, by hand-made snapshots."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from pollux_slurm.model import ClusterSnapshot, JobState, JobTerms, SlurmJob, SlurmNode
from pollux_slurm.slurm.parsing.anchor_nodes import Clearances, Leaving, anchors_to_move
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment
from tests.fakes.slurm import fake_node
from tests.slurm.parsing.test_merged_wings import NOON, anchor, job


def anchor_on(name: str, number: str = "7", **changes: Any) -> SlurmJob:
    shown = anchor(cpus_by_node=((name, 1),), memory_mb_by_node=((name, 500),), **changes)
    return dataclasses.replace(shown, job_id=number)


def node(name: str, **changes: Any) -> SlurmNode:
    """Return a node of 4 GPUs, 8 CPUs and 8192 MB; one CPU and 500 MB are an anchor's."""
    return dataclasses.replace(fake_node(name), **{"used_cpus": 1, "used_memory_mb": 500, **changes})


def waiting(gpus: int = 4, cpus: int = 8, **changes: Any) -> SlurmJob:
    fields = {"reason": "Resources", "priority": 10, "partition": "main", **changes}
    return job("9", JobState.PENDING, requested_gpus=gpus, num_cpus=cpus, **fields)


def leaving(nodes: list[SlurmNode], *jobs: SlurmJob, minutes: float = 2) -> Mapping[str, str]:
    read_at = NOON + timedelta(minutes=minutes)
    anchors = [one for one in jobs if "inplace=1" in one.comment and one.state is JobState.RUNNING]
    found = anchors_to_move(ClusterSnapshot(read_at=read_at, nodes=tuple(nodes), jobs=jobs), anchors)
    return {number: one.because for number, one in found.items()}


def test_that_an_anchor_stays_where_nobody_needs_its_node() -> None:
    assert leaving([node("n0")], anchor_on("n0")) == {}
    assert leaving([node("n0"), fake_node("n1")], anchor_on("n0"), waiting()) == {}  # n1 is free for it


def test_that_an_anchor_leaves_for_a_job_that_ends_before_a_reservation_begins() -> None:
    reserved = dataclasses.replace(node("n0"), reserved_from=NOON + timedelta(hours=2))
    assert leaving([reserved], anchor_on("n0"), waiting(time_limit_s=3600.0)) != {}
    assert leaving([reserved], anchor_on("n0"), waiting(time_limit_s=3 * 3600.0)) == {}


def test_that_an_anchor_leaves_a_drained_node_at_once() -> None:
    drained = node("n0", available=False, draining=True)
    assert leaving([drained], anchor_on("n0"), minutes=0) == {"7": "its anchor leaves n0, which is drained"}
    reserved = node("n0", available=False)
    assert leaving([reserved], anchor_on("n0")) == {}


@pytest.mark.parametrize(
    "wanted",
    [
        waiting(),
        waiting(cpus=1, cpus_per_gpu=2),
        waiting(gpus=0, cpus=1, exclusive=True),
        waiting(gpus=4, cpus=4, memory_per_gpu_mb=2048),
    ],
    ids=["all CPUs", "all CPUs by GPU", "exclusive", "all memory"],
)
def test_that_an_anchor_leaves_a_node_that_it_alone_keeps_from_a_waiting_job(wanted: SlurmJob) -> None:
    assert leaving([node("n0")], anchor_on("n0"), wanted) == {
        "7": "its anchor leaves n0, for which job 9 waits"
    }
    assert leaving([node("n0")], anchor_on("n0"), wanted, minutes=1) == {}
    # Others are there, too, or the job would not start there anyway.
    assert leaving([node("n0", used_cpus=3, used_gpus=1, used_memory_mb=900)], anchor_on("n0"), wanted) == {}
    for changes in ({"reason": "Priority"}, {"excluded_nodes": ("n0",)}):
        assert leaving([node("n0")], anchor_on("n0"), dataclasses.replace(wanted, **changes)) == {}


def test_that_jobs_without_gpus_wings_and_adaptive_jobs_move_no_anchor() -> None:
    terms = WingTerms(anchor_id="7", restart_count=0, plan=0, token_sha256="ab" * 32)
    adaptive = encode_comment("", JobTerms(token_sha256="cd" * 32, user_id=1000))
    for changes in (
        {"requested_gpus": 0},
        {"comment": encode_wing_comment(terms)},
        {"comment": adaptive},
    ):
        wanted = dataclasses.replace(waiting(), **changes)
        assert leaving([node("n0")], anchor_on("n0"), wanted) == {}


def test_that_an_anchor_stays_twice_as_long_after_each_requeue() -> None:
    wanted, often = waiting(), anchor_on("n0", restart_count=3)
    assert leaving([node("n0")], often, wanted, minutes=15.9) == {}
    assert leaving([node("n0")], often, wanted, minutes=16) != {}


def test_that_anchors_stay_while_one_beside_them_does() -> None:
    full = node("n0", used_cpus=2, used_memory_mb=1000)
    young = anchor_on("n0", "8", started_at=NOON + timedelta(minutes=9))
    assert leaving([full], anchor_on("n0"), young, waiting(), minutes=10) == {}
    assert set(leaving([full], anchor_on("n0"), young, waiting(), minutes=11)) == {"7", "8"}


def test_that_a_job_that_fits_beside_the_anchor_moves_nothing() -> None:
    assert leaving([node("n0")], anchor_on("n0"), waiting(gpus=4, cpus=7)) == {}


def test_that_as_many_nodes_are_cleared_as_the_job_lacks_those_with_fewest_anchors_first() -> None:
    nodes = [node("n0", used_cpus=2, used_memory_mb=1000), node("n1"), node("n2"), fake_node("n3")]
    anchors = [anchor_on("n0", "1"), anchor_on("n0", "2"), anchor_on("n1", "3"), anchor_on("n2", "4")]
    assert set(leaving(nodes, *anchors, waiting(gpus=8, cpus=16, num_nodes=2))) == {"3"}
    assert set(leaving(nodes, *anchors, waiting(gpus=16, cpus=32, num_nodes=4))) == {"1", "2", "3", "4"}
    # Five nodes are not there, whoever leaves.
    assert leaving(nodes, *anchors, waiting(gpus=20, cpus=40, num_nodes=5)) == {}


def test_that_anchors_leave_for_one_job_of_a_user_an_hour() -> None:
    clearances, users = Clearances(), {"9": 1000, "10": 1000, "11": 2000}
    jobs = {
        number: dataclasses.replace(waiting(), job_id=number, user_id=user) for number, user in users.items()
    }

    def allowed(minutes: float, **leaving: str) -> set[str]:
        found = {anchor: Leaving("it waits", jobs[number]) for anchor, number in leaving.items()}
        return set(clearances.allowed(found | {"d": Leaving("drained")}, NOON + timedelta(minutes=minutes)))

    assert allowed(0, a="9", b="9", c="10") == {"a", "b", "d"}, "both of the first job, which needs both"
    clearances.note_left("a")
    assert allowed(30, a="10", b="9") == {"b", "d"}, "a has left for this user, b still has to"
    assert allowed(59, c="10", e="11") == {"e", "d"}, "another user's job"
    assert allowed(60, c="10") == {"c", "d"}
