"""Where a job may run: lists of hosts and constraints, as Slurm prints them."""

from __future__ import annotations

import pytest

from pollux_slurm.model import SlurmJob
from pollux_slurm.slurm.parsing.job_json import parse_job
from pollux_slurm.slurm.parsing.node_constraints import expand_hosts, feature_sets
from pollux_slurm.slurm.parsing.node_json import parse_node
from tests.slurm.parsing.test_job_json import job, pending
from tests.slurm.parsing.test_node_json import node


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("n0", ("n0",)),
        ("n[0-2,07],m1,r[1-2]c3", ("n0", "n1", "n2", "n07", "m1", "r1c3", "r2c3")),
        ("rack[1-2]n[08-10]", ("rack1n08", "rack1n09", "rack1n10", "rack2n08", "rack2n09", "rack2n10")),
    ],
)
def test_that_a_list_of_hosts_is_expanded(text: str, hosts: tuple[str, ...]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["n[0-", "n0]", "n[a]", "n[3-1]", "n[0-99999999]", "n[0-9999]m[0-9999]"])
def test_that_a_malformed_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host|range"):
        expand_hosts(text)


@pytest.mark.parametrize("text", ["n[0-60000,0-60000]", "n[0-60000],m[0-60000]"])
def test_that_too_large_ranges_of_hosts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"too many|more than"):
        expand_hosts(text)


@pytest.mark.parametrize("text", ["n" * 300, "n[0-1]" * 9, "n" * 90_000 + "[0-9]" * 5])
def test_that_names_that_no_host_can_have_are_refused(text: str) -> None:
    """A hundred thousand of them would fill the memory."""
    with pytest.raises(ValueError, match="too long"):
        expand_hosts(text)


def test_that_constraints_that_can_be_checked_node_by_node_are_read() -> None:
    assert feature_sets("") == ()
    assert feature_sets("v100-32g") == ({"v100-32g"},)
    assert feature_sets("fast&big") == ({"fast", "big"},)
    assert feature_sets("a100|h100") == ({"a100"}, {"h100"})
    assert feature_sets("[rack1|rack2]") == ({"rack1"}, {"rack2"})
    assert feature_sets("[v100]") == ({"v100"},)


@pytest.mark.parametrize("constraint", ["a*2", "[a*2]", "[a&b]", "a&b|c", "(a|b)&c", "a&[b*2]", "&", "a b"])
def test_that_other_constraints_make_a_job_unschedulable(constraint: str) -> None:
    with pytest.raises(ValueError, match="more than features"):
        feature_sets(constraint)
    read = parse_job(job(features=constraint))
    assert read.unschedulable_reason is not None
    assert f"--constraint={constraint}" in read.unschedulable_reason


def nodes_for(read: SlurmJob, *named: str) -> list[str]:
    """Return which of three nodes the job may run on."""
    nodes = [
        parse_node(node(name="n0", partitions=["main", "a"], active_features="fast,big")),
        parse_node(node(name="n1", partitions=["main", "b"], active_features=["fast"])),
        parse_node(node(name="n2", partitions=["main", "c"], active_features=[], gres="gpu:a100:4")),
    ]
    return [one.name for one in nodes if read.may_run_on(one, named)]


def test_that_what_is_asked_of_several_nodes_together_is_kept_on_one() -> None:
    for changes in ({"features": "[fast|big]"}, {"contiguous": True}):
        read = parse_job(job(**changes))
        assert (read.one_node, read.unschedulable_reason) == (True, None)
    for changes in ({"features": "[fast]"}, {"features": "fast|big"}, {"contiguous": False}, {}):
        assert not parse_job(job(**changes)).one_node
    assert nodes_for(parse_job(pending(features="[fast|slow]"))) == ["n0", "n1"]


def test_that_a_job_may_run_where_slurm_would_start_it() -> None:
    assert nodes_for(parse_job(pending())) == ["n0", "n1", "n2"]
    assert nodes_for(parse_job(pending(partition="a,b"))) == ["n0", "n1"]
    assert nodes_for(parse_job(pending(features="fast"))) == ["n0", "n1"]
    assert nodes_for(parse_job(pending(features="fast&big"))) == ["n0"]
    assert nodes_for(parse_job(pending(features="big|slow"))) == ["n0"]
    assert nodes_for(parse_job(pending(excluded_nodes="n[0,2]"))) == ["n1"]
    assert nodes_for(parse_job(pending(excluded_nodes=["n1"]))) == ["n0", "n2"]
    assert nodes_for(parse_job(pending(tres_per_job="gres:gpu:a100:1"))) == ["n2"]
    assert nodes_for(parse_job(pending()), "n1") == ["n1"]
    assert parse_job(pending(required_nodes="n[0-1]")).required_nodes == ("n0", "n1")


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({"resv_name": "maintenance"}, "--reservation"),
        ({"excluded_nodes": "n[0-"}, "--exclude"),
    ],
)
def test_that_a_job_whose_constraints_cannot_be_checked_node_by_node_is_unschedulable(
    changes: dict[str, object], because: str
) -> None:
    read = parse_job(job(**changes))
    assert because in (read.unschedulable_reason or "")


@pytest.mark.parametrize(
    "reason",
    [
        "Dependency",
        "DependencyNeverSatisfied",
        "PartitionDown",
        "PartitionInactive",
        "Reservation",
        "Licenses",
    ],
)
def test_that_a_job_that_slurm_would_not_start_is_blocked(reason: str) -> None:
    assert reason in (parse_job(pending(state_reason=reason)).blocked_because or "")
    assert parse_job(job(state_reason=reason)).blocked_because is None, "it runs"


@pytest.mark.parametrize(
    "reason", ["None", "Resources", "Priority", "BeginTime", "ReqNodeNotAvail", "BadConstraints"]
)
def test_that_a_job_that_waits_for_resources_or_another_shape_is_not_blocked(reason: str) -> None:
    assert parse_job(pending(state_reason=reason)).blocked_because is None


def test_that_one_partition_of_several_being_down_stops_no_job() -> None:
    assert parse_job(pending(partition="a,b", state_reason="PartitionDown")).blocked_because is None


def test_that_a_hold_by_requeuehold_is_distinguished_from_an_administrators() -> None:
    requeued = {"priority": 0, "state_description": "job requeued in held state"}
    assert parse_job(pending(**requeued, state_reason="JobHeldUser")).held_since_requeue
    assert not parse_job(pending(**requeued, state_reason="JobHeldAdmin")).held_since_requeue
    assert not parse_job(pending(priority=0, state_reason="JobHeldUser")).held_since_requeue


def test_that_a_node_with_occupied_shards_counts_as_occupied() -> None:
    shared = node(gres="gpu:t4:4,shard:16", gres_used="gpu:t4:0(IDX:N/A),shard:3(3/4,0/4,0/4,0/4)")
    assert (parse_node(shared).num_gpus, parse_node(shared).used_gpus) == (4, 4)
    unused = node(gres="gpu:t4:4,shard:16", gres_used="gpu:t4:1(IDX:0),shard:0(0/4,0/4,0/4,0/4)")
    assert parse_node(unused).used_gpus == 1


@pytest.mark.parametrize(
    ("state", "responds"),
    [("idle", True), (["IDLE", "DRAIN"], True), ("down", False), (["DOWN", "NOT_RESPONDING"], False)],
)
def test_that_a_down_node_does_not_respond(state: object, responds: bool) -> None:
    assert parse_node(node(state=state)).responds is responds
