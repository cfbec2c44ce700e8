"""The cluster picture: which jobs are managed, and what unmanaged jobs leave of the nodes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pollux_slurm.daemon.observe import cluster_picture
from pollux_slurm.model import JobState, JobTerms, SlurmJob
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.now import known_jobs
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.slurm.parsing.merged_wings import merge_wings
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment
from pollux_slurm.store.contract.interface import RunPhase
from tests.daemon.builders import NOON, job, node, reallocation, record, run, snapshot

TERMS = JobTerms(token_sha256="ab" * 32, user_id=1000, min_gpus=1, max_gpus=8)


def test_that_only_jobs_with_terms_in_a_served_partition_are_registered() -> None:
    comment = encode_comment("mine", TERMS)
    seen = snapshot(
        [node("n0")],
        [
            job("1", JobState.PENDING, comment=comment),
            job("2", JobState.PENDING, comment="no terms"),
            job("3", JobState.PENDING, comment=comment, partition="debug"),
            job("4", JobState.COMPLETED, comment="no terms"),
        ],
    )
    (found,) = cluster_picture.registrations(seen, ["main"])
    assert (found.slurm_job_id, found.terms) == ("1", TERMS)
    assert [one.slurm_job_id for one in cluster_picture.registrations(seen)] == ["1", "3"]


def test_that_cpus_per_gpu_are_derived_where_the_job_did_not_state_them() -> None:
    seen = job(
        "1",
        on={"n0": 2},
        comment=encode_comment("", TERMS),
        num_cpus=7,
        cpus_per_gpu=None,
        memory_per_gpu_mb=None,
        memory_mb_by_node=(("n0", 3001),),
    )
    (found,) = cluster_picture.registrations(snapshot([node("n0")], [seen]))
    assert (found.cpus_per_gpu, found.memory_per_gpu_mb) == (4, 1501)


IN_PLACE = dataclasses.replace(TERMS, in_place=True)


def in_place(*wings: SlurmJob) -> SlurmJob:
    """Return job 1, an anchor with one CPU and 300 MB of n0, with its wings."""
    owned: dict[str, Any] = {"cpus_by_node": (("n0", 1),), "memory_mb_by_node": (("n0", 300),)}
    anchor = job("1", comment=encode_comment("", IN_PLACE), **owned)
    merged = merge_wings(snapshot([node("n0")], [anchor, *wings])).job("1")
    assert merged is not None
    return merged


def wing(job_id: str, on: dict[str, int], *, plan: int = 0, **changes: Any) -> SlurmJob:
    terms = WingTerms(anchor_id="1", restart_count=0, plan=plan, token_sha256=IN_PLACE.token_sha256)
    return job(job_id, on=on, comment=encode_wing_comment(terms), **changes)


def test_that_a_job_in_place_is_registered_with_what_its_first_wing_requests() -> None:
    seen = snapshot([node("n0")], [in_place()])
    assert cluster_picture.registrations(seen) == ()
    assert known_jobs.refused_registrations(seen, []) == {}
    unstated: dict[str, Any] = {"num_cpus": 6, "cpus_per_gpu": None, "memory_per_gpu_mb": None}
    first = wing("2", {"n0": 2}, memory_mb_by_node=(("n0", 3001),), **unstated)
    joined = wing("3", {"n1": 2}, plan=4, memory_mb_by_node=(("n1", 9999),))
    (found,) = cluster_picture.registrations(snapshot([node("n0")], [in_place(first, joined)]))
    assert (found.slurm_job_id, found.terms) == ("1", IN_PLACE)
    assert (found.cpus_per_gpu, found.memory_per_gpu_mb) == (3, 1501)


def test_that_an_anchor_keeps_its_cpu_wherever_its_wings_are() -> None:
    nodes = [node("n0", used=2, used_cpus=3, used_memory_mb=500)]
    mine = in_place(wing("2", {"n0": 2}, cpus_by_node=(("n0", 2),), memory_mb_by_node=(("n0", 200),)))
    known = record("1", terms=IN_PLACE)
    (capacity,) = cluster_picture.build_picture(snapshot(nodes, [mine]), [known]).nodes
    assert (capacity.num_gpus, capacity.num_cpus, capacity.memory_mb) == (4, 8 - 1, 8000 - 300)


def test_that_an_observation_in_place_has_the_changes_of_the_wings() -> None:
    known = record("1", terms=IN_PLACE)
    mine = in_place(wing("2", {"n0": 2}))
    ((seen,), _) = cluster_picture.observations(
        snapshot([node("n0")], [mine]), [known], vanished_before=frozenset()
    )
    assert (seen.in_place, seen.changes, seen.restart_count) == (True, mine.changes, 0)
    ((alone,), _) = cluster_picture.observations(
        snapshot([node("n0")], [in_place()]), [known], vanished_before=frozenset()
    )
    assert (alone.state, alone.changes, alone.restart_count) == (JobState.COMPLETING, (), None)


def test_that_what_unmanaged_jobs_use_is_subtracted_from_the_nodes() -> None:
    nodes = [node("n0", used=3, used_cpus=5, used_memory_mb=700)]
    mine = job("1", on={"n0": 2})
    seen = cluster_picture.build_picture(snapshot(nodes, [mine, job("9", on={"n0": 1})]), [record("1")])
    (capacity,) = seen.nodes
    assert (capacity.num_gpus, capacity.num_cpus, capacity.memory_mb) == (3, 8 - 3, 8000 - 500)


def test_that_a_drained_node_takes_no_new_jobs() -> None:
    seen = cluster_picture.build_picture(snapshot([node("n0", available=False)], []), [])
    assert not seen.nodes[0].accepts_new


def test_that_an_observation_has_the_gpu_type_of_its_run() -> None:
    nodes = [node("n0"), node("n1"), node("m0", gpu_type="a100")]
    jobs = [
        job("1", on={"n0": 1, "n1": 1}, restart_count=2),
        job("2", on={"n0": 1, "m0": 1}),
        job("3", JobState.COMPLETING, on={"n0": 1}),
        job("4", JobState.PENDING),
    ]
    records = [record(one.job_id) for one in jobs]
    seen, _ = cluster_picture.observations(snapshot(nodes, jobs), records, vanished_before=frozenset())
    assert [(one.gpu_type, one.restart_count) for one in seen] == [("t4", 2), (None, 0), (None, 0), (None, 0)]


def test_that_a_job_is_taken_for_over_only_when_missing_from_two_reads() -> None:
    finished = record("1", run=run(phase=RunPhase.FINISHED))
    crashed = record("2")
    empty = snapshot([node("n0")], [])
    seen, vanished = cluster_picture.observations(empty, [finished, crashed], vanished_before=frozenset())
    assert (seen, vanished) == ((), frozenset({"1", "2"}))
    seen, _ = cluster_picture.observations(empty, [finished, crashed], vanished_before=vanished)
    assert {one.slurm_job_id: one.state for one in seen} == {"1": JobState.COMPLETED, "2": JobState.FAILED}


def test_that_the_end_of_a_job_is_observed_with_its_time() -> None:
    over = dataclasses.replace(job("1", JobState.COMPLETED), ended_at=NOON)
    seen, _ = cluster_picture.observations(
        snapshot([node("n0")], [over]), [record("1")], vanished_before=frozenset()
    )
    assert (seen[0].state, seen[0].ended_at) == (JobState.COMPLETED, NOON)


def test_that_jobs_of_other_partitions_are_unmanaged_unless_in_flight() -> None:
    jobs = [job("1", on={"n0": 1}), job("2", on={"n0": 1}, partition="debug")]
    nodes = [node("n0", used=2)]
    seen = cluster_picture.build_picture(snapshot(nodes, jobs), [record("1"), record("2")], ["main"])
    assert [one.slurm.job_id for one in seen.managed] == ["1"]
    assert seen.nodes[0].num_gpus == 3
    move = reallocation(1, "2", Step.PLANNED, source={"n0": 1}, target={"n0": 2})
    records = [record("1"), record("2", open_reallocation=move)]
    both = cluster_picture.build_picture(snapshot(nodes, jobs), records, ["main"])
    assert [one.slurm.job_id for one in both.managed] == ["1", "2"]


def test_that_of_a_job_of_several_partitions_those_count_that_are_served() -> None:
    waiting = job("1", JobState.PENDING, partition="main,debug")
    (registered,) = cluster_picture.registrations(snapshot([node("n0")], [waiting]), ["main"])
    assert registered.slurm_job_id == "1"
    (seen,) = cluster_picture.build_picture(
        snapshot([node("n0")], [waiting]), [record("1")], ["main"]
    ).managed
    assert seen.slurm.partitions == ("main",)
    assert (
        cluster_picture.build_picture(snapshot([node("n0")], [waiting]), [record("1")], ["other"]).managed
        == ()
    )


@pytest.mark.parametrize(
    "comment", ["", "words", encode_comment("", JobTerms(token_sha256="cd" * 32, user_id=1000))]
)
def test_that_a_job_with_another_comment_than_the_registered_one_is_not_managed(comment: str) -> None:
    seen = snapshot([node("n0", used=1)], [job("1", on={"n0": 1}, comment=comment)])
    assert cluster_picture.build_picture(seen, [record("1")]).managed == ()
    observed, vanished = cluster_picture.observations(seen, [record("1")], vanished_before=frozenset())
    assert (observed, vanished) == ((), frozenset({"1"}))


def test_that_a_job_with_another_users_token_is_refused_with_a_reason() -> None:
    def of(user_id: int, sha256: str = "ab" * 32) -> str:
        return encode_comment("", JobTerms(token_sha256=sha256, user_id=user_id, min_gpus=1))

    jobs = [
        job("1", comment=of(1000), on={"n0": 1}),
        job("2", comment=of(1001), on={"n0": 1}),  # copied as it stood
        job("3", user_id=1001, comment=of(1001), on={"n0": 1}),  # copied, with the copying user's own id
        job("4", comment=of(1000), on={"n0": 1}),
        job("5", comment=of(1000, "cd" * 32), on={"n0": 1}),
        job("6", comment=f"pollux/1:sha256={'ab' * 32},min=1", on={"n0": 1}),
        job("7", JobState.CANCELLED, comment=of(1001)),
        job("8", comment="words"),
    ]
    seen = snapshot([node("n0")], jobs)
    assert [one.slurm_job_id for one in cluster_picture.registrations(seen)] == ["1", "3", "4", "5"]
    known = record("1", terms=JobTerms(token_sha256="ab" * 32, user_id=1000))
    assert known_jobs.refused_registrations(seen, [known], refused=["5"]) == {
        "2": "its token is another user's: its Comment has user id 1001, Slurm has 1000",
        "4": "its token is that of the same user's job 1",
        "5": "its token was an earlier job's, or its bounds are impossible",
        "6": "the terms in its Comment cannot be used: field 'uid' is missing",
    }
    assert known_jobs.is_recorded_job(jobs[0], known)
    assert not known_jobs.is_recorded_job(job("1", user_id=1001, comment=of(1001)), known)
    assert not known_jobs.is_recorded_job(job("1", user_id=1001, comment=of(1000)), known)
