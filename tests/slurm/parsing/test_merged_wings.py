"""One job of an anchor and its wings, by hand-made snapshots."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pollux_slurm.model import Allocation, ClusterSnapshot, JobState, JobTerms, SlurmJob
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.slurm.parsing.merged_wings import merge_wings
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
HEX = "ab" * 32


def at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


def job(job_id: str, state: JobState, on: dict[str, int] | None = None, **changes: Any) -> SlurmJob:
    allocation = Allocation.of(on or {})
    fields: dict[str, Any] = {
        "job_id": job_id,
        "name": "train",
        "user_name": "ann",
        "user_id": 1000,
        "account": "physics",
        "qos": "normal",
        "partition": "gpu",
        "state": state,
        "held": False,
        "reason": "None",
        "comment": "",
        "allocation": allocation,
        "requested_gpus": allocation.num_gpus,
        "num_cpus": 1,
        "cpus_per_gpu": None,
        "memory_per_gpu_mb": None,
        "cpus_by_node": tuple((node, 2 * gpus) for node, gpus in allocation.gpus_by_node),
        "memory_mb_by_node": tuple((node, 100 * gpus) for node, gpus in allocation.gpus_by_node),
        "restart_count": 0,
        "submitted_at": NOON,
        "started_at": None if state is JobState.PENDING else NOON,
        "ended_at": None,
        "time_limit_s": 3600.0,
        "exit_code": None,
    }
    return SlurmJob(**{**fields, **changes})


def anchor(state: JobState = JobState.RUNNING, **changes: Any) -> SlurmJob:
    terms = JobTerms(token_sha256=HEX, user_id=1000, in_place=True)
    fields = {
        "comment": encode_comment("mine", terms),
        "cpus_by_node": (("login", 1),) if state is JobState.RUNNING else (),
        "memory_mb_by_node": (("login", 500),) if state is JobState.RUNNING else (),
        "partition": "small",
        "time_limit_s": 7200.0,
    }
    return job("7", state, **{**fields, **changes})


def wing(
    job_id: str,
    state: JobState,
    on: dict[str, int] | None = None,
    *,
    restart: int = 0,
    plan: int = 0,
    **changes: Any,
) -> SlurmJob:
    terms = WingTerms(anchor_id="7", restart_count=restart, plan=plan, token_sha256=HEX)
    return job(job_id, state, on, **{"comment": encode_wing_comment(terms), "cpus_per_gpu": 2, **changes})


def merged(*jobs: SlurmJob) -> SlurmJob:
    snapshot = merge_wings(ClusterSnapshot(read_at=NOON, nodes=(), jobs=jobs))
    assert [one.job_id for one in snapshot.jobs] == ["7"]
    return snapshot.jobs[0]


def test_that_an_anchor_has_the_sum_of_its_wings() -> None:
    start = wing("9", JobState.RUNNING, {"n0": 2, "n1": 2}, priority=5)
    joined = wing("10", JobState.RUNNING, {"n1": 1, "n2": 3}, plan=4, started_at=at(3))
    found = merged(anchor(), joined, start)
    assert found.state is JobState.RUNNING
    assert found.allocation == Allocation.of({"n0": 2, "n1": 3, "n2": 3})
    assert found.cpus_by_node == (("login", 1), ("n0", 4), ("n1", 6), ("n2", 6))
    assert found.memory_mb_by_node == (("login", 500), ("n0", 200), ("n1", 300), ("n2", 300))
    assert (found.job_id, found.comment, found.wings) == ("7", anchor().comment, (start, joined))
    assert (found.partition, found.cpus_per_gpu, found.requested_gpus) == ("gpu", 2, 4)
    assert (found.time_limit_s, found.started_at) == (3600.0, NOON)
    assert found.changes == ((NOON, start.allocation), (at(3), found.allocation))


def test_that_a_pending_wing_stands_for_the_pending_job() -> None:
    ended = wing("9", JobState.FAILED, last_allocation=Allocation.of({"n0": 1}), ended_at=at(5))
    waits = wing("10", JobState.PENDING, restart=1, requested_gpus=2, begins_at=at(7), reason="BeginTime")
    found = merged(anchor(), ended, waits)
    assert (found.state, found.restart_count, found.requested_gpus) == (JobState.PENDING, 1, 2)
    assert (found.begins_at, found.reason, found.held) == (at(7), "BeginTime", False)
    assert (found.allocation, found.started_at, found.ended_at) == (Allocation(), None, None)


def test_that_an_anchor_that_waits_itself_keeps_its_own_reason() -> None:
    waits = wing("10", JobState.CANCELLED, ended_at=at(2))
    found = merged(anchor(JobState.PENDING, held=True, reason="JobHeldUser"), waits)
    assert (found.state, found.held, found.reason) == (JobState.PENDING, True, "JobHeldUser")


@pytest.mark.parametrize(
    ("wings", "state"),
    [
        ([wing("9", JobState.COMPLETING, {"n0": 1})], JobState.COMPLETING),
        ([wing("9", JobState.FAILED, ended_at=at(1))], JobState.COMPLETING),
        (
            [wing("9", JobState.COMPLETING, {"n0": 1}), wing("10", JobState.PENDING, restart=1)],
            JobState.COMPLETING,
        ),
        (
            [wing("9", JobState.RUNNING, {"n0": 1}), wing("10", JobState.PENDING, plan=2)],
            JobState.RUNNING,
        ),
        (
            [wing("9", JobState.RUNNING, {"n0": 1}), wing("10", JobState.SUSPENDED, {"n1": 1}, plan=2)],
            JobState.SUSPENDED,
        ),
    ],
)
def test_the_state_of_a_running_anchor_and_its_wings(wings: list[SlurmJob], state: JobState) -> None:
    assert merged(anchor(), *wings).state is state


def test_that_a_job_is_over_when_its_last_wing_is() -> None:
    over = anchor(JobState.COMPLETED, ended_at=at(10), exit_code=0)
    left = wing("9", JobState.COMPLETED, last_allocation=Allocation.of({"n0": 2}), ended_at=at(4))
    last = wing("10", JobState.COMPLETED, last_allocation=Allocation.of({"n1": 1}), ended_at=at(11), plan=1)
    leaving = wing("10", JobState.COMPLETING, {"n1": 1}, plan=1)
    assert merged(over, left, leaving).state is JobState.COMPLETING
    found = merged(over, left, last)
    assert (found.state, found.exit_code, found.ended_at) == (JobState.COMPLETED, 0, at(11))
    assert (found.last_allocation, found.allocation) == (Allocation.of({"n1": 1}), Allocation())


@pytest.mark.parametrize(
    "changes",
    [
        {"user_id": 1001},
        {"account": "chemistry"},
        {"qos": "high"},
        {
            "comment": encode_wing_comment(
                WingTerms(anchor_id="7", restart_count=0, plan=0, token_sha256="0" * 64)
            )
        },
        {"comment": encode_wing_comment(WingTerms(anchor_id="8", restart_count=0, plan=0, token_sha256=HEX))},
        {"comment": ""},
    ],
)
def test_that_a_forged_wing_is_a_job_of_its_own(changes: dict[str, Any]) -> None:
    forged = wing("9", JobState.RUNNING, {"n0": 4}, **changes)
    found = merge_wings(ClusterSnapshot(read_at=NOON, nodes=(), jobs=(anchor(), forged)))
    assert found.job("9") == forged
    alone = found.job("7")
    assert alone is not None
    assert (alone.allocation, alone.wings) == (Allocation(), ())


def test_that_only_a_job_that_moves_in_place_has_wings() -> None:
    terms = JobTerms(token_sha256=HEX, user_id=1000)
    plain = anchor(comment=encode_comment("", terms))
    copied = anchor(user_id=1001)
    for other in (plain, copied):
        snapshot = ClusterSnapshot(
            read_at=NOON, nodes=(), jobs=(other, wing("9", JobState.RUNNING, {"n0": 1}))
        )
        assert merge_wings(snapshot) == snapshot


def test_that_an_anchor_without_wings_is_left_alone() -> None:
    """Before its first wing and after its last, and once slurmctld has forgotten those of its last start."""
    assert merged(anchor()) == dataclasses.replace(anchor(), state=JobState.COMPLETING)
    over = anchor(JobState.COMPLETED, ended_at=at(3))
    assert merged(over) == over


@pytest.mark.parametrize("wings", [[], [wing("9", JobState.CANCELLED, ended_at=at(1))]])
def test_that_nobody_moves_an_anchor_that_waits_itself(wings: list[SlurmJob]) -> None:
    found = merged(anchor(JobState.PENDING, priority=3), *wings)
    assert (found.state, found.priority) == (JobState.PENDING, 3)
    assert found.unschedulable_reason == "its anchor waits in the queue itself"
    assert found.anchor_waits
    assert not merged(anchor(), *wings).anchor_waits


def test_that_another_reason_does_not_hide_an_anchor_that_waits() -> None:
    odd = wing("9", JobState.CANCELLED, ended_at=at(1), unschedulable_reason="it asks for whole nodes")
    found = merged(anchor(JobState.PENDING), odd)
    assert (found.unschedulable_reason, found.anchor_waits) == ("it asks for whole nodes", True)


def test_that_a_requeued_anchor_is_stopping_until_its_wings_have_ended() -> None:
    assert merged(anchor(JobState.PENDING), wing("9", JobState.RUNNING, {"n0": 1})).state is (
        JobState.COMPLETING
    )


def test_that_what_keeps_a_wing_from_being_moved_keeps_the_job() -> None:
    odd = wing("9", JobState.RUNNING, {"n0": 1}, unschedulable_reason="it asks for whole nodes")
    assert merged(anchor(), odd).unschedulable_reason == "it asks for whole nodes"


def test_that_a_later_start_was_submitted_with_its_wing() -> None:
    """As after a requeue, which sets a job's submission time."""
    assert merged(anchor(), wing("9", JobState.PENDING, submitted_at=at(1))).submitted_at == NOON
    later = wing("9", JobState.PENDING, restart=1, submitted_at=at(9))
    assert merged(anchor(), later).submitted_at == at(9)


def test_that_changes_are_the_sum_of_all_wings_of_all_starts() -> None:
    of_first = wing(
        "9", JobState.CANCELLED, last_allocation=Allocation.of({"n0": 2}), ended_at=at(9), restart=0
    )
    joined = wing(
        "10",
        JobState.COMPLETED,
        last_allocation=Allocation.of({"n1": 1}),
        started_at=at(2),
        ended_at=at(4),
        plan=5,
    )
    of_second = wing("11", JobState.RUNNING, {"n2": 4}, started_at=at(15), restart=1)
    never_ran = wing("12", JobState.CANCELLED, started_at=at(20), ended_at=at(20), restart=1, plan=6)
    waits = wing("13", JobState.PENDING, restart=1, plan=7)
    found = merged(anchor(), waits, of_second, joined, of_first, never_ran)
    assert [(str(on), moment) for moment, on in found.changes] == [
        ("n0:2", NOON),
        ("n0:2+n1:1", at(2)),
        ("n0:2", at(4)),
        ("none", at(9)),
        ("n2:4", at(15)),
    ]
    assert found.started_at == at(15)


def test_that_wings_that_begin_and_end_within_a_second_are_shown_together_first() -> None:
    left = wing("9", JobState.COMPLETED, last_allocation=Allocation.of({"n0": 1}), ended_at=at(3))
    joined = wing("10", JobState.RUNNING, {"n1": 1}, started_at=at(3), plan=2)
    ended_at_once = wing(
        "11",
        JobState.FAILED,
        last_allocation=Allocation.of({"n1": 2}),
        started_at=at(4),
        ended_at=at(4),
        plan=3,
    )
    found = merged(anchor(), left, joined, ended_at_once)
    assert [(str(on), moment) for moment, on in found.changes] == [
        ("n0:1", NOON),
        ("n0:1+n1:1", at(3)),
        ("n1:1", at(3)),
        ("n1:3", at(4)),
        ("n1:1", at(4)),
    ]


@pytest.mark.parametrize(
    ("changes", "spans"),
    [
        ({"suspended_at": at(5), "counted_s": 300.0}, [(0, 1), (5, 0)]),
        # It was suspended before, for a minute.
        ({"suspended_at": at(6), "counted_s": 300.0}, [(1, 1), (6, 0)]),
        ({"resumed_at": at(9), "counted_s": 300.0}, [(0, 1), (5, 0), (9, 1)]),
        # It was cancelled while it was suspended.
        ({"resumed_at": at(9), "ended_at": at(9), "counted_s": 300.0}, [(0, 1), (5, 0), (9, 1), (9, 0)]),
    ],
)
def test_that_the_time_for_which_a_wing_is_suspended_is_not_counted(
    changes: dict[str, Any], spans: list[tuple[int, int]]
) -> None:
    found = merged(anchor(), wing("9", JobState.SUSPENDED, {"n0": 1}, **changes))
    assert [(moment, on.num_gpus) for moment, on in found.changes] == [(at(minute), n) for minute, n in spans]
    assert (found.suspended_at, found.resumed_at, found.counted_s) == (None, None, 0.0)
