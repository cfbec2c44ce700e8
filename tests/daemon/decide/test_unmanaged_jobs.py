"""GPUs reserved for unmanaged jobs: the next ones in the queue, and a share of each partition."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from pollux_slurm.config import PolicyConfig
from pollux_slurm.daemon.decide import problem_building, unmanaged_jobs
from pollux_slurm.daemon.observe import cluster_picture
from pollux_slurm.model import Allocation, JobState, JobTerms, Problem, ProblemJob, SlurmJob, SlurmNode
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.policy import decide
from tests.daemon.builders import MODEL, NOON, TERMS, job, node, reallocation, record, snapshot
from tests.daemon.harness import Harness


def waiting(job_id: str, gpus: int, priority: int, **changes: Any) -> SlurmJob:
    fields: dict[str, Any] = {"comment": "", "reason": "Resources", "requested_gpus": gpus}
    return job(job_id, JobState.PENDING, priority=priority, **{**fields, **changes})


TWO_NODES = (node("n0"), node("n1"))


def next_jobs(
    *jobs: SlurmJob,
    ours: tuple[str, ...] = (),
    nodes: Sequence[SlurmNode] = TWO_NODES,
    terms: JobTerms = TERMS,
    **settings: Any,
) -> tuple[ProblemJob, ...]:
    seen = snapshot(list(nodes), list(jobs))
    picture = cluster_picture.build_picture(
        seen, [record(job_id, state=JobState.PENDING, terms=terms) for job_id in ours]
    )
    return unmanaged_jobs.next_unmanaged_jobs(
        picture,
        problem_building.UsableNodes(seen),
        PolicyConfig(**settings),
        takes_part=problem_building.participants(picture, now=NOON),
    )


def in_turn(*jobs: SlurmJob, **more: Any) -> list[tuple[str, int]]:
    found = next_jobs(*jobs, **more)
    assert all(job.rigid and job.min_gpus == job.max_gpus and job.model is None for job in found)
    return [(job.job_id, job.min_gpus) for job in found]


def test_that_jobs_that_wait_for_room_come_in_the_order_of_their_priorities() -> None:
    assert in_turn(waiting("1", 4, 10), waiting("2", 4, 20, reason="Priority")) == [("2", 4), ("1", 4)]
    assert in_turn(waiting("1", 4, 10), yields_to_pending=False) == []
    # Slurm's reason while a moving job's place is reserved.
    assert in_turn(waiting("1", 4, 10, reason="ReqNodeNotAvail")) == [("1", 4)]


def test_that_no_room_is_made_for_a_job_whose_room_one_before_it_needs() -> None:
    """What is lent, 2 GPUs of n1, is enough for the first alone: half of it for each would start none."""
    nodes = [node("n0", used=4), node("n1", gpus=3, used=3)]
    adaptive = job("7", on={"n1": 3})
    first = waiting("1", 2, 20)
    for second in (waiting("2", 2, 10), waiting("2", 0, 10, num_cpus=1), waiting("2", 2, 10, num_nodes=2)):
        assert in_turn(adaptive, first, second, ours=("7",), nodes=nodes) == [("1", 2)]
    larger = [node("n0", used=4), node("n1", used=3)]
    assert in_turn(adaptive, first, waiting("2", 1, 10), ours=("7",), nodes=larger) == [("1", 2), ("2", 1)]
    # One that could not start takes nothing from those behind it.
    wide = waiting("1", 8, 20, num_nodes=2, num_cpus=8)
    assert in_turn(adaptive, wide, waiting("2", 2, 10), ours=("7",), nodes=nodes) == [("2", 2)]


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": "Dependency"},
        {"reason": "QOSMaxGRESPerUser"},
        {"reason": "BeginTime"},
        {"held": True},
        {"requested_gpus": 0, "num_cpus": 0},
        {"reason": "PartitionDown"},
        {"reason": "ReqNodeNotAvail", "required_nodes": ("n9",)},
        {"requested_gpus": 9},
        {"requested_gpus": 8, "num_nodes": 4},
        {"requested_gpus": 0, "num_cpus": 9},
    ],
)
def test_that_a_job_that_waits_for_something_else_or_could_not_start_has_no_turn(
    changes: dict[str, Any],
) -> None:
    assert in_turn(waiting("1", 4, 10, **changes)) == []


def test_that_a_job_for_whole_nodes_counts_as_one_that_fits_beside_anchors_but_not_beside_others() -> None:
    """Nodes have 8 CPUs. An anchor or another job takes one of each; an anchor's wing has another."""
    wing = job("8", on={"n0": 1}, cpus_by_node=(("n0", 1),))
    anchor = job("7", on={"n0": 1}, cpus_by_node=(("n0", 2), ("n1", 1)), wings=(wing,))
    other = job("6", comment="", requested_gpus=0, cpus_by_node=(("n0", 1), ("n1", 1)))
    in_place = dataclasses.replace(record("7"), terms=dataclasses.replace(record("7").terms, in_place=True))

    def cpus_per_gpu(*jobs: SlurmJob, used_cpus: tuple[int, int], gpus: int = 4, cpus: int = 8) -> int:
        nodes = [
            dataclasses.replace(
                node(name, used=1 if name == "n0" and jobs[0] is anchor else 0), used_cpus=used
            )
            for name, used in zip(("n0", "n1"), used_cpus, strict=True)
        ]
        wide = waiting("1", gpus, 10, num_cpus=cpus, cpus_per_gpu=None)
        seen = snapshot(nodes, [*jobs, wide])
        picture = cluster_picture.build_picture(seen, [in_place] if jobs[0] is anchor else [])
        (found,) = unmanaged_jobs.next_unmanaged_jobs(
            picture, problem_building.UsableNodes(seen), PolicyConfig(), takes_part=()
        )
        return found.cpus_per_gpu

    assert cpus_per_gpu(anchor, used_cpus=(2, 1)) == 1
    assert cpus_per_gpu(anchor, used_cpus=(2, 1), gpus=2, cpus=4) == 2
    assert cpus_per_gpu(other, used_cpus=(1, 1)) == 2


def test_that_an_adaptive_job_that_waits_with_a_higher_priority_goes_first() -> None:
    ours = job("7", JobState.PENDING, priority=15, requested_gpus=1)
    assert in_turn(ours, waiting("1", 4, 10), waiting("2", 4, 20), ours=("7",)) == [("2", 4)]
    elsewhere = job("7", JobState.PENDING, priority=15, requested_gpus=1, partition="other")
    assert in_turn(elsewhere, waiting("1", 4, 10), ours=("7",)) == [("1", 4)]


@pytest.mark.parametrize(
    ("changes", "terms"),
    [
        ({"blocked_because": "Slurm does not start it now (Dependency)"}, TERMS),
        ({"held": True}, TERMS),
        ({"begins_at": NOON + timedelta(hours=1)}, TERMS),
        ({}, dataclasses.replace(TERMS, min_gpus=9, max_gpus=16)),
    ],
)
def test_that_a_pending_adaptive_job_that_takes_no_part_counts_for_nothing(
    changes: dict[str, Any], terms: JobTerms
) -> None:
    ours = job("7", JobState.PENDING, priority=15, **{"begins_at": None, **changes})
    assert in_turn(ours, waiting("1", 2, 10), ours=("7",), terms=terms) == [("1", 2)]


def test_that_a_job_without_gpus_gets_room_for_its_cpus() -> None:
    running = job("7", on={"n0": 4}, cpus_by_node=(("n0", 8),))
    full = [node("n0", used=4, used_cpus=8)]
    (found,) = next_jobs(running, waiting("1", 0, 10, num_cpus=4), ours=("7",), nodes=full)
    assert (found.min_gpus, found.cpus_per_gpu) == (1, 4)
    # The adaptive job keeps its minimum, with its CPU.
    assert next_jobs(running, waiting("1", 0, 10, num_cpus=8), ours=("7",), nodes=full) == ()


def test_that_of_several_partitions_the_reason_of_one_does_not_matter() -> None:
    several = waiting("1", 4, 10, partition="main,other", reason="PartitionDown")
    assert in_turn(several) == [("1", 4)]
    assert in_turn(dataclasses.replace(several, reason="Dependency")) == []


def test_that_a_job_of_several_nodes_has_its_share_on_each() -> None:
    """`-N2 --gpus-per-node=4` beside a node of eight that is idle: Slurm starts it on no single node."""
    nodes = [node("n0", gpus=8, num_cpus=16), node("n1", used=3), node("n2", used=1)]
    # Unmanaged jobs have the rest of n1 and n2.
    assert next_jobs(waiting("1", 8, 10, num_nodes=2, num_cpus=8), nodes=nodes) == ()
    adaptive = [job("7", on={"n1": 3}), job("8", on={"n2": 1})]
    found = next_jobs(*adaptive, waiting("1", 6, 10, num_nodes=2, num_cpus=6), ours=("7", "8"), nodes=nodes)
    assert [(one.job_id, one.min_gpus, one.partition_nodes) for one in found] == [
        ("1", 3, frozenset({"n2"})),
        ("1/1", 3, frozenset({"n0"})),
    ]


def test_that_a_job_that_moves_counts_where_it_will_be() -> None:
    """Its target is pinned in this round: no part of a rigid job of several nodes is planned there."""
    nodes = [node("n0"), node("n1", used=1), node("n2")]
    moves = job("7", on={"n1": 1})
    seen = snapshot(nodes, [moves, waiting("1", 8, 10, num_nodes=2, num_cpus=8)])

    def names(*, moving: bool) -> list[frozenset[str] | None]:
        shown = record("7")
        if moving:
            move = reallocation(1, "7", Step.RELEASED, source={"n1": 1}, target={"n2": 1})
            shown = dataclasses.replace(shown, open_reallocation=move)
        found = unmanaged_jobs.next_unmanaged_jobs(
            cluster_picture.build_picture(seen, [shown]),
            problem_building.UsableNodes(seen),
            PolicyConfig(),
            takes_part=(),
        )
        return [one.partition_nodes for one in found]

    assert names(moving=False) == [frozenset({"n0"}), frozenset({"n2"})]
    assert names(moving=True) == [frozenset({"n0"}), frozenset({"n1"})]


@pytest.mark.parametrize(
    ("changes", "rigid", "waits"),
    [
        ({}, {}, True),
        ({"priority": 15}, {}, False),
        ({"partition": "other"}, {}, False),
        ({"partition": "other,main"}, {}, True),
        # A move, or a preemption, has stopped it: it does not stand where it was submitted.
        ({"restart_count": 1}, {}, False),
        ({}, {"held": True}, False),
        ({}, {"reason": "Dependency"}, False),
        ({}, {"reason": "ReqNodeNotAvail"}, False),
        # In Slurm's order it is the next, be it only when others end.
        ({}, {"requested_gpus": 8, "num_nodes": 2}, True),
        # It ends before Slurm expects the other to start.
        ({"time_limit_s": 600.0}, {"expected_start_at": NOON + timedelta(seconds=660)}, False),
        ({"time_limit_s": 600.0}, {"expected_start_at": NOON + timedelta(seconds=540)}, True),
        ({"time_limit_s": None}, {"expected_start_at": NOON + timedelta(seconds=660)}, True),
    ],
)
def test_that_a_job_that_has_never_run_waits_for_a_rigid_one_before_it_in_the_queue(
    changes: dict[str, Any], rigid: dict[str, Any], waits: bool
) -> None:
    """Else newcomers start on what others give up, until the cluster is full, and it waits for their ends."""
    ours = job("7", JobState.PENDING, **{"priority": 5, "requested_gpus": 1, "begins_at": None, **changes})
    runs = job("8", on={"n0": 2})
    seen = snapshot([node("n0", used=2), node("n1", used=4)], [ours, runs, waiting("1", 4, 10, **rigid)])
    picture = cluster_picture.build_picture(seen, [record("7", state=JobState.PENDING), record("8")])

    def part(**settings: Any) -> frozenset[str]:
        ordered = unmanaged_jobs.wait_in_order(picture, PolicyConfig(**settings))
        return problem_building.participants(ordered, now=NOON)

    assert part() == ({"8"} if waits else {"7", "8"})
    assert part(yields_to_pending=False) == {"7", "8"}


def test_that_adaptive_jobs_move_together_for_a_job_that_asks_for_one_node() -> None:
    """Each has two GPUs of another node: two on each were no place for it."""
    half = [node("n0", used=2), node("n1", used=2)]
    others = [job("7", on={"n0": 2}), job("8", on={"n1": 2})]
    whole = waiting("1", 4, 10, max_nodes=1)
    seen = snapshot(half, [*others, whole])
    records = [dataclasses.replace(record(one), submitted_gpus=2) for one in ("7", "8")]
    picture = cluster_picture.build_picture(seen, records)
    (found,) = unmanaged_jobs.next_unmanaged_jobs(
        picture, problem_building.UsableNodes(seen), PolicyConfig(), takes_part=()
    )
    assert found.one_node
    adaptive = [
        ProblemJob(job_id=one, model=MODEL, min_gpus=2, current=Allocation.of({name: 2}), age_s=1e6)
        for one, name in (("7", "n0"), ("8", "n1"))
    ]
    given = decide(Problem(nodes=picture.nodes, jobs=(*adaptive, found))).allocation("1")
    assert (given.num_gpus, len(given.nodes)) == (4, 1)
    (spans,) = next_jobs(dataclasses.replace(whole, max_nodes=None))
    assert not spans.one_node
    # `--gpus=6`, as 24.11 shows it.
    (needs_both,) = next_jobs(waiting("1", 6, 10, max_nodes=1))
    assert not needs_both.one_node


@pytest.mark.parametrize(("own", "starts"), [(1, True), (2, False)])
def test_that_adaptive_jobs_move_together_for_a_job_of_several_nodes(own: int, starts: bool) -> None:
    """Three GPUs of n0 are their jobs' own. One of these fits on n1, if what is lent there is given back."""
    others = [job("7", on={"n0": 2}), job("8", on={"n0": 2}), job("9", on={"n1": 2})]
    wide = waiting("1", 4, 10, num_nodes=2, num_cpus=4)
    seen = snapshot([node("n0", used=4), node("n1", used=2)], [*others, wide])
    owned = {"7": 2, "8": own, "9": 1}
    records = [dataclasses.replace(record(one), submitted_gpus=gpus) for one, gpus in owned.items()]
    picture = cluster_picture.build_picture(seen, records)
    parts = unmanaged_jobs.next_unmanaged_jobs(
        picture, problem_building.UsableNodes(seen), PolicyConfig(), takes_part=()
    )
    if not starts:
        assert parts == ()
        return
    adaptive = [
        ProblemJob(
            job_id=one.job_id, model=MODEL, min_gpus=owned[one.job_id], current=one.allocation, age_s=1e6
        )
        for one in others
    ]
    decision = decide(Problem(nodes=picture.nodes, jobs=(*adaptive, *parts)))
    given = [decision.allocation(part.job_id) for part in parts]
    assert given == [Allocation.of({"n1": 2}), Allocation.of({"n0": 2})]
    assert {one: decision.allocation(one).num_gpus for one in owned} == owned


def kept(
    share: float, *jobs: SlurmJob, ours: tuple[str, ...] = (), used: tuple[int, int] = (0, 0)
) -> list[int]:
    seen = snapshot([node("n0", used=used[0]), node("n1", used=used[1])], list(jobs))
    picture = cluster_picture.build_picture(seen, [record(job_id) for job_id in ours])
    return [
        entry.num_gpus for entry in unmanaged_jobs.reserve_shares(picture.nodes, picture, [("main", share)])
    ]


def test_that_a_share_is_reserved_on_the_emptiest_nodes_and_unmanaged_jobs_count_towards_it() -> None:
    assert kept(0.25) == [2, 4]
    assert kept(0.25, job("1", on={"n0": 1}), ours=("1",), used=(1, 0)) == [4, 2]
    assert kept(0.25, job("99", on={"n0": 2}, comment=""), used=(2, 0)) == [2, 4]
    assert kept(0.5, job("99", on={"n0": 2}, comment=""), used=(2, 0)) == [2, 2]
    assert (kept(1.0), kept(0.0)) == ([0, 0], [4, 4])


def test_that_adaptive_jobs_shrink_for_a_wide_rigid_job_whose_turn_it_is(harness: Harness) -> None:
    """Grown over both nodes, the job makes room for an unmanaged one that needs a whole node."""
    job_id = harness.submit()
    daemon = harness.daemon(decide=decide)
    harness.run_until(daemon, until=lambda: harness.job(job_id).allocation.num_gpus > 4, seconds=120)
    assert harness.job(job_id).allocation.num_gpus > 4
    wide = harness.submit_unmanaged(gpus=4)
    assert harness.job(wide).state is JobState.PENDING
    harness.run_until(daemon, until=lambda: harness.job(wide).state is JobState.RUNNING, seconds=60)
    assert harness.job(wide).allocation.num_gpus == 4
    harness.run_until(daemon, until=lambda: harness.job(job_id).state is JobState.RUNNING, seconds=30)
    assert 1 <= harness.job(job_id).allocation.num_gpus <= 4


def test_that_a_kept_share_is_not_grown_into(harness: Harness) -> None:
    job_id = harness.submit()
    policy = PolicyConfig(kept_shares=(("main", 0.5),))
    harness.run_until(harness.daemon(decide=decide, policy=policy), seconds=40)
    assert harness.job(job_id).allocation == Allocation.of({"n0": 4})
