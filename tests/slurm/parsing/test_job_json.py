"""Odd jobs. What the releases really print is in `test_recorded.py`."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.model import Allocation, JobState
from pollux_slurm.slurm.parsing.job_json import parse_job
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment

NODES = [
    {"nodename": "n0", "memory_allocated": 4000, "sockets": {"0": {"cores": {"0": "allocated"}}}},
    {"nodename": "n1", "memory_allocated": 1000, "sockets": {"0": {"cores": {"0": "allocated"}}}},
]


def job(**changes: Any) -> dict[str, Any]:
    """Return a running job of two nodes as 22.05 prints it, with some fields changed; None removes one."""
    content: dict[str, Any] = {
        "job_id": 7,
        "name": "train",
        "user_name": "alice",
        "user_id": 1000,
        "account": "",
        "partition": "main",
        "job_state": "RUNNING",
        "priority": 4294901757,
        "state_reason": "None",
        "comment": "",
        "cpus": 2,
        "node_count": 2,
        "tasks": 2,
        "tres_per_job": "gres:gpu:5",
        "tres_per_node": "",
        "cpus_per_tres": "",
        "memory_per_tres": "",
        "memory_per_node": None,
        "memory_per_cpu": None,
        "job_resources": {"nodes": "n[0-1]", "allocated_nodes": NODES},
        "gres_detail": ["gpu:t4:4(IDX:0-3)", "gpu:t4:1(IDX:0)"],
        "restart_cnt": 0,
        "submit_time": 1790000000,
        "start_time": 1790000001,
        "end_time": 1790003601,
        "time_limit": 60,
        "exit_code": 0,
        "array_job_id": 0,
        "array_task_id": None,
        "het_job_id": 0,
        "batch_flag": True,
        "requeue": True,
        "shared": None,
    }
    content.update(changes)
    return content


def pending(**changes: Any) -> dict[str, Any]:
    return job(**{"job_state": "PENDING", "gres_detail": [], "job_resources": None, **changes})


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("PENDING", JobState.PENDING),
        ("CONFIGURING", JobState.RUNNING),
        ("SPECIAL_EXIT", JobState.PENDING),
        ("REQUEUE_HOLD", JobState.PENDING),
        ("COMPLETING", JobState.COMPLETING),
        ("STAGE_OUT", JobState.COMPLETING),
        ("STOPPED", JobState.SUSPENDED),
        ("NODE_FAIL", JobState.FAILED),
        ("DEADLINE", JobState.TIMEOUT),
        ("PREEMPTED", JobState.CANCELLED),
        (["RUNNING"], JobState.RUNNING),
        (["RUNNING", "CONFIGURING"], JobState.RUNNING),
        (["RUNNING", "STOPPED"], JobState.SUSPENDED),
        (["PENDING", "COMPLETING"], JobState.COMPLETING),
        (["PENDING", "REQUEUE_HOLD"], JobState.PENDING),
        (["PENDING", "POWER_UP_NODE"], JobState.PENDING),
        (["CANCELLED", "COMPLETING"], JobState.COMPLETING),
        (["COMPLETED", "UPDATE_DB"], JobState.COMPLETED),
        (["FAILED", "REVOKED"], JobState.FAILED),
    ],
)
def test_that_each_state_of_slurm_maps_to_one_of_ours(words: Any, state: JobState) -> None:
    assert parse_job(job(job_state=words)).state is state


@pytest.mark.parametrize("state", ["", "ASLEEP", [], ["RUNNING", "ASLEEP"], ["UPDATE_DB"], 3, None])
def test_that_an_unknown_state_is_an_error(state: Any) -> None:
    with pytest.raises(SlurmReadError, match=r"job 7.*job_state"):
        parse_job(job(job_state=state))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job_id", "7"),
        ("job_id", -1),
        ("user_id", None),
        ("restart_cnt", None),
        ("restart_cnt", {"number": 1}),
        ("name", 5),
        ("comment", ["a"]),
        ("batch_flag", None),
        ("requeue", "yes"),
        ("submit_time", 10**18),
        ("gres_detail", ["gpu:t4:4(IDX:0-3)"]),
        ("gres_detail", ["gpu:t4:4:4:4", ""]),
        ("gres_detail", "gpu:t4:4,gpu:t4:1"),
        ("job_resources", None),
        ("job_resources", {"allocated_nodes": [*NODES[:1], *NODES[:1]]}),
        ("job_resources", {"allocated_nodes": [{"nodename": "n0"}, NODES[1]]}),
        ("job_resources", {"nodes": {"allocation": None}}),
        ("priority", "high"),
        ("time_limit", 1 << 64),
        ("time_limit", 1e300),
        ("array_job_id", 1.5),
    ],
)
def test_that_a_malformed_field_of_slurms_is_an_error(field: str, value: Any) -> None:
    content = pending(**{field: value}) if field == "priority" else job(**{field: value})
    with pytest.raises(SlurmReadError, match=r"job"):
        parse_job(content)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("tres_per_job", "gres:gpu:1:2:3", "cannot be understood"),
        ("cpus_per_tres", "gres:gpu::", "cannot be understood"),
        ("tres_per_job", "gres:gpu:t4:1,gres:gpu:a100:1", "several types"),
        ("tres_per_node", "gres:gpu:1,gres:nvme:1", "other generic resources"),
        ("tres_per_socket", "gres:gpu:1", "socket"),
        ("shared", "none", "--exclusive"),
        ("shared", ["none"], "--exclusive"),
        ("het_job_id", 3, "heterogeneous"),
        ("batch_flag", False, "not a batch job"),
        ("requeue", False, "--requeue"),
    ],
)
def test_that_a_malformed_request_makes_only_that_job_unschedulable(
    field: str, value: Any, reason: str
) -> None:
    assert reason in (parse_job(pending(**{field: value})).unschedulable_reason or "")


def test_that_a_job_that_was_requeued_is_a_batch_job_whatever_the_flag_says() -> None:
    # slurmctld counts its own requeues in the flag; 22.05 prints it as true for 1 only.
    assert parse_job(pending(batch_flag=False, restart_cnt=1)).unschedulable_reason is None


@pytest.mark.parametrize(
    ("changes", "num_gpus"),
    [
        ({"tres_per_job": "gres:gpu:5"}, 5),
        ({"tres_per_job": "", "tres_per_node": "gres:gpu:t4:3"}, 6),
        ({"tres_per_job": "", "tres_per_task": "gres/gpu:2", "tasks": 4}, 8),
        ({"tres_per_job": "", "tres_per_task": "cpu=2,gres/gpu:2", "tasks": 4}, 8),
        ({"tres_per_job": "gres:gpu:6", "tres_per_node": "gres:gpu:3"}, 6),
        # It has been given one node, and had two in its last run.
        ({"tres_per_job": "gres:gpu:3", "tres_per_node": "gres:gpu:3"}, 3),
        ({"tres_per_job": "gres:gpu:1k"}, 1024),
        ({"tres_per_job": ""}, 0),
    ],
)
def test_that_the_request_is_counted_over_all_nodes_and_tasks(changes: dict[str, Any], num_gpus: int) -> None:
    shown = parse_job(pending(**changes))
    assert shown.requested_gpus == num_gpus
    assert shown.unschedulable_reason is None


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, None),  # --gpus=5
        ({"max_nodes": 0}, None),
        ({"max_nodes": 1}, 1),  # -N1
        ({"max_nodes": 2}, 2),  # -N1-2
        # Of GPUs by node, Slurm takes as few nodes as it may.
        ({"max_nodes": 0, "node_count": 1, "tres_per_job": "", "tres_per_node": "gres:gpu:2"}, 1),
        ({"max_nodes": 0, "node_count": 1, "tres_per_job": "", "tres_per_task": "gres:gpu:2"}, None),
    ],
)
def test_that_the_most_nodes_are_those_of_the_request(changes: dict[str, Any], most: int | None) -> None:
    assert parse_job(pending(**changes)).max_nodes == most


@pytest.mark.parametrize(
    ("changes", "cpus_per_gpu", "memory_per_gpu_mb"),
    [
        ({"cpus_per_tres": "gres:gpu:2", "memory_per_tres": "gres:gpu:1000"}, 2, 1000),
        ({"cpus_per_tres": "gres/gpu:2", "memory_per_cpu": 500}, 2, 1000),
        ({"memory_per_cpu": 500, "cpus": 10}, None, 1000),
        ({"memory_per_node": 4000}, None, 1600),
        ({"memory_per_node": 0}, None, None),
        ({"memory_per_cpu": 4294967294}, None, None),
        ({"memory_per_cpu": {"set": False, "infinite": False, "number": 0}}, None, None),
    ],
)
def test_that_cpus_and_memory_are_per_gpu(
    changes: dict[str, Any], cpus_per_gpu: int | None, memory_per_gpu_mb: int | None
) -> None:
    shown = parse_job(pending(**changes))
    assert (shown.cpus_per_gpu, shown.memory_per_gpu_mb) == (cpus_per_gpu, memory_per_gpu_mb)


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({"priority": 0}, True),
        ({"priority": {"set": True, "infinite": False, "number": 0}}, True),
        ({"state_reason": "JobHeldAdmin"}, True),
        ({"state_reason": "Resources"}, False),
        ({"job_state": "SPECIAL_EXIT", "priority": 0}, True),
        ({"job_state": "COMPLETING", "priority": 0}, False),
        ({"job_state": "CANCELLED", "priority": 0}, False),
    ],
)
def test_that_only_a_pending_job_is_held(changes: dict[str, Any], held: bool) -> None:
    assert parse_job(pending(**changes)).held is held


@pytest.mark.parametrize(
    ("changes", "by_slurm"),
    [
        ({"state_reason": "JobHeldUser", "state_description": "launch failed requeued held"}, True),
        ({"state_reason": "JobHoldMaxRequeue"}, True),
        ({"state_reason": "JobHeldUser", "state_description": "job requeued in held state"}, False),
        ({"state_reason": "JobHeldAdmin"}, False),
    ],
)
def test_that_a_job_held_by_slurm_is_distinguished_from_one_held_by_a_user(
    changes: dict[str, Any], by_slurm: bool
) -> None:
    shown = parse_job(pending(priority=0, **changes))
    assert (shown.held, shown.held_by_slurm) == (True, by_slurm)
    assert not parse_job(pending(priority=5, **changes | {"state_reason": "None"})).held_by_slurm


def test_that_a_job_started_without_its_gpus_is_unschedulable_alone() -> None:
    """22.05 just after its own start; of a job whose GPUs are hidden, the other text speaks."""
    shown = parse_job(job(gres_detail=[]))
    assert (shown.state, shown.allocation) == (JobState.RUNNING, Allocation())
    assert "without the GPUs" in (shown.unschedulable_reason or "")
    assert dict(shown.cpus_by_node) == {"n0": 1, "n1": 1}
    with pytest.raises(SlurmReadError, match="gres_detail"):
        parse_job(job(gres_detail=[], tres_alloc_str="cpu=2,node=2,gres/gpu=5"))


def test_that_cores_with_two_threads_count_twice() -> None:
    shown = parse_job(job(cpus=4))
    assert shown.cpus_by_node == (("n0", 2), ("n1", 2))


def test_that_a_job_without_gpus_owns_none() -> None:
    shown = parse_job(job(tres_per_job="", gres_detail=[]))
    assert (shown.allocation, shown.requested_gpus) == (Allocation(), 0)
    assert dict(shown.cpus_by_node) == {"n0": 1, "n1": 1}


def test_that_a_lone_surrogate_in_a_name_can_be_stored() -> None:
    assert parse_job(job(name="a\ud800b")).name.encode() == b"a?b"


@pytest.mark.parametrize("number", [65534, 65535, 2147483647])
def test_that_ids_equal_to_16_bit_no_val_are_read_as_ids(number: int) -> None:
    shown = parse_job(job(job_id=number, user_id=number))
    assert (shown.job_id, shown.user_id) == (str(number), number)


def test_that_a_user_without_a_name_is_shown_by_number() -> None:
    assert parse_job(job(user_name="")).user_name == "1000"


@pytest.mark.parametrize("begin", [10**12, 2**63 - 1, -(2**62)])
def test_that_no_time_of_an_owners_stops_a_read(begin: int) -> None:
    """Slurm accepts `--begin=uts999999999999`, which no calendar has."""
    job = parse_job(pending(eligible_time=begin, start_time=begin, deadline=begin))
    for shown in (job.begins_at, job.expected_start_at, job.deadline_at):
        assert shown is None if begin < 0 else (shown is not None and shown.year == 9999)


@given(st.text(), st.text(), st.text(max_size=20), st.text(max_size=20))
def test_that_no_text_of_a_user_stops_a_read(name: str, comment: str, gpus: str, cpus: str) -> None:
    content = pending(name=name, comment=comment, tres_per_job=gpus, cpus_per_tres=cpus)
    shown = parse_job(content)
    assert (shown.name, shown.comment, shown.job_id) == (name, comment, "7")
    assert shown.requested_gpus >= 0


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"tres_per_job": "gres:gpu:5"}, None),
        ({"tres_per_job": "gres:gpu:a100:5"}, "a100"),
        ({"tres_per_job": "", "tres_per_node": "gres/gpu:t4:3"}, "t4"),
        ({"tres_per_job": "gres:gpu:t4:1,gres:gpu:a100:1"}, None),
    ],
)
def test_that_the_requested_gpu_type_is_read(asked: dict[str, Any], kind: str | None) -> None:
    assert parse_job(pending(**asked)).requested_gpu_type == kind


def node_with(name: str, cores: int) -> dict[str, Any]:
    used = {str(core): "allocated" for core in range(cores)}
    return {"nodename": name, "memory_allocated": 0, "sockets": {"0": {"cores": used}}}


@pytest.mark.parametrize(
    ("cores", "gpus", "spread"),
    [((8, 2), 5, (4, 1)), ((2, 2), 3, (2, 1)), ((16, 1), 4, (3, 1)), ((1, 1, 1), 3, (1, 1, 1))],
)
def test_that_the_gpus_of_a_job_that_is_over_are_spread_as_its_cpus_are(
    cores: tuple[int, ...], gpus: int, spread: tuple[int, ...]
) -> None:
    nodes = [node_with(f"n{number}", count) for number, count in enumerate(cores)]
    over = parse_job(
        job(
            job_state="COMPLETED",
            gres_detail=[],
            tres_alloc_str=f"cpu={sum(cores)},gres/gpu={gpus}",
            job_resources={"nodes": "n", "allocated_nodes": nodes},
        )
    )
    assert over.last_allocation == Allocation.of({f"n{number}": n for number, n in enumerate(spread)})


def test_that_a_resize_is_shown_with_what_the_job_has_since() -> None:
    assert parse_job(job()).changes == ()
    resized = parse_job(job(resize_time=1790000100))
    assert resized.changes == ((datetime.fromtimestamp(1790000100, timezone.utc), resized.allocation),)
    assert parse_job(pending(resize_time=1790000100)).changes == ()


def test_that_a_wing_needs_no_requeue_to_be_moved() -> None:
    wing = encode_wing_comment(WingTerms(anchor_id="7", restart_count=0, plan=0, token_sha256="ab" * 32))
    assert parse_job(job(requeue=False, comment=wing)).unschedulable_reason is None
    assert "--requeue" in str(parse_job(job(requeue=False)).unschedulable_reason)
