"""The problem of a round: which jobs are pinned, where jobs may run, and their history."""

from __future__ import annotations

import dataclasses
import math
from datetime import timedelta

import pytest

from pollux_slurm.config import PolicyConfig
from pollux_slurm.daemon.decide import problem_building
from pollux_slurm.daemon.observe import cluster_picture
from pollux_slurm.model import Allocation, Configuration, GpuLimit, JobState, JobTerms
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.policy import decide
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.store.contract.interface import RecentRun, RunPhase
from tests.daemon.builders import MODEL, NOON, job, node, reallocation, record, run, sample, snapshot

TERMS = JobTerms(token_sha256="ab" * 32, user_id=1000, min_gpus=1, max_gpus=8)


def reason_of(seen: cluster_picture.Picture) -> str | None:
    """Return why the one job of a problem is pinned."""
    (one,) = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30).jobs
    return one.pinned_because


def problem_of(seen: cluster_picture.Picture) -> dict[str, tuple[Allocation, bool]]:
    problem = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30)
    return {one.job_id: (one.current, one.pinned) for one in problem.jobs}


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ({}, None),
        ({"run": None}, "its present run has not reported a step yet"),
        ({"run": run(steps=0)}, "its present run has not reported a step yet"),
        ({"run": run(phase=RunPhase.FINISHED)}, "it is about to end"),
        ({"run": run(restart_count=1)}, "its present run has not reported a step yet"),
    ],
    ids=["reports", "never reported", "no step yet", "about to end", "another run reported"],
)
def test_that_a_running_job_moves_only_when_its_current_run_has_reported_a_step(
    change: dict[str, object], because: str | None
) -> None:
    seen = cluster_picture.build_picture(
        snapshot([node("n0", used=2)], [job("1", on={"n0": 2})]), [record("1", **change)]
    )
    assert problem_of(seen) == {"1": (Allocation.of({"n0": 2}), because is not None)}
    assert reason_of(seen) == because


def test_that_a_job_that_may_not_be_requeued_is_pinned_while_it_runs() -> None:
    rigid = job("1", on={"n0": 2}, unschedulable_reason="submitted with --no-requeue")
    seen = cluster_picture.build_picture(snapshot([node("n0", used=2)], [rigid]), [record("1")])
    assert problem_of(seen) == {"1": (Allocation.of({"n0": 2}), True)}
    assert reason_of(seen) == "submitted with --no-requeue"


def test_that_a_held_job_takes_no_part() -> None:
    held = job("1", JobState.PENDING, held=True)
    assert problem_of(cluster_picture.build_picture(snapshot([node("n0")], [held]), [record("1")])) == {}


def test_that_a_job_in_flight_counts_at_its_target_even_if_that_was_taken() -> None:
    move = reallocation(1, "1", Step.REQUEUED, source={"n0": 1}, target={"n0": 4})
    seen = cluster_picture.build_picture(
        snapshot([node("n0", used=3)], [job("1", JobState.PENDING, held=True), job("9", on={"n0": 3})]),
        [record("1", open_reallocation=move)],
    )
    problem = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30)
    assert problem.jobs[0].current == Allocation.of({"n0": 4})
    assert problem.jobs[0].pinned_because == "it is being moved"
    assert problem.nodes[0].num_gpus == 4


def test_that_age_measured_delay_and_prediction_error_reach_the_problem() -> None:
    since = NOON - timedelta(hours=1)
    known = record("1", num_restarts=3, mean_restart_delay_s=12.5, submitted_at=since, prediction_error=0.25)
    seen = cluster_picture.build_picture(snapshot([node("n0", used=1)], [job("1", on={"n0": 1})]), [known])
    (one,) = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30).jobs
    assert (one.age_s, one.num_restarts, one.restart_delay_s) == (3600, 3, 12.5)
    assert one.prediction_error == 0.25


def test_that_no_measured_delay_prevents_moves() -> None:
    """It reports its first step itself, as late as the time-out allows."""
    slow = record("1", mean_restart_delay_s=900.0)
    seen = cluster_picture.build_picture(snapshot([node("n0", used=1)], [job("1", on={"n0": 1})]), [slow])
    (one,) = problem_building.build_problem(
        seen, now=NOON, default_restart_delay_s=30, max_restart_delay_s=300
    ).jobs
    assert one.restart_delay_s == 300


@pytest.mark.parametrize(
    ("measured", "delays"),
    [
        ({}, (30, 15)),
        ({"mean_warm_up_s": 20.0, "mean_standstill_s": 0.5}, (30, 20.5)),
        # A requeue starts the same processes.
        ({"mean_warm_up_s": 50.0}, (50, 50)),
        ({"mean_restart_delay_s": 12.0}, (12, 12)),
        ({"mean_restart_delay_s": 40.0, "mean_warm_up_s": 50.0}, (40, 40)),
        ({"mean_restart_delay_s": 900.0, "mean_warm_up_s": 900.0}, (300, 300)),
    ],
)
def test_that_no_requeue_is_expected_to_be_shorter_than_a_move_in_place(
    measured: dict[str, float], delays: tuple[float, float]
) -> None:
    terms = dataclasses.replace(record("1").terms, in_place=True)
    known = record("1", terms=terms, **measured)
    seen = cluster_picture.build_picture(snapshot([node("n0", used=1)], [job("1", on={"n0": 1})]), [known])
    (one,) = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30).jobs
    assert (one.restart_delay_s, one.in_place_delay_s) == delays


def test_that_a_model_that_contradicts_the_progress_is_rejected() -> None:
    one_gpu = Configuration(num_nodes=1, num_gpus=1)
    lying = record("1", recent_runs=(RecentRun(0.001, ((one_gpu, 300.0),), "t4"),), models=(("t4", MODEL),))
    seen = cluster_picture.build_picture(snapshot([node("n0", used=1)], [job("1", on={"n0": 1})]), [lying])
    (one,) = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30).jobs
    assert (one.model, one.models) == (None, ())
    assert "examples/s on 1 GPU of 1 node" in (one.model_doubt or "")


def test_that_a_job_that_named_a_type_of_gpu_is_offered_that_type_only() -> None:
    nodes = [node("n0"), node("n1", gpu_type="a100"), node("n2", partitions=("debug",))]
    for kind, usable in (("t4", {"n0"}), ("a100", {"n1"}), ("h100", set())):
        seen = cluster_picture.build_picture(
            snapshot(nodes, [job("1", JobState.PENDING, requested_gpu_type=kind)]), [record("1")]
        )
        (one,) = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30).jobs
        assert one.partition_nodes == frozenset(usable)


def test_that_models_by_type_of_gpu_share_what_is_known_of_the_gradients() -> None:
    old = dataclasses.replace(MODEL, statistics=None, max_gpus_seen=8)
    known = record("1", models=(("a100", MODEL), ("t4", old)))
    seen = cluster_picture.build_picture(snapshot([node("n0", used=1)], [job("1", on={"n0": 1})]), [known])
    (one,) = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30).jobs
    assert one.model is None
    grown = dataclasses.replace(MODEL, max_gpus_seen=8)
    assert one.models == (("a100", grown), ("t4", grown))


@pytest.mark.parametrize(
    ("min_run_s", "site_s", "is_held_off"),
    [
        (None, 0.0, False),
        (None, 400.0, True),  # it started five minutes ago
        (200.0, 400.0, False),
        (400.0, 0.0, True),
        (0.0, 400.0, False),
        (math.inf, 0.0, True),
    ],
)
def test_that_a_job_runs_undisturbed_for_as_long_as_its_owner_or_else_the_site_says(
    min_run_s: float | None, site_s: float, is_held_off: bool
) -> None:
    terms = dataclasses.replace(TERMS, min_run_s=min_run_s)
    jobs = [
        job("1", on={"n0": 1}, comment=encode_comment("", terms)),
        job("2", JobState.PENDING, comment=encode_comment("", terms)),
    ]
    records = [record(number, terms=TERMS) for number in ("1", "2")]
    seen = cluster_picture.build_picture(snapshot([node("n0", used=1)], jobs), records)
    found = problem_building.build_problem(
        seen, now=NOON, default_restart_delay_s=30, policy=PolicyConfig(min_age_s=site_s)
    )
    assert {one.job_id: one.held_off for one in found.jobs} == {"1": is_held_off, "2": False}


@pytest.mark.parametrize(
    ("min_run_s", "terms", "gets"),
    [
        (math.inf, {}, 2),
        (3600.0, {}, 4),
        (math.inf, {"min_gpus": 3}, 3),
        (math.inf, {"max_gpus": 1}, 1),
    ],
)
def test_that_a_job_that_never_moves_again_first_gives_back_what_is_lent(
    min_run_s: float, terms: dict[str, int], gets: int
) -> None:
    """It was submitted with two GPUs and runs on four; nobody else wants any."""
    asked = dataclasses.replace(TERMS, min_run_s=min_run_s, **terms)
    there = job("1", on={"n0": 4}, comment=encode_comment("", asked))
    seen = cluster_picture.build_picture(
        snapshot([node("n0", used=4)], [there]), [record("1", terms=asked, submitted_gpus=2)]
    )
    problem = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30)
    assert decide(problem).allocation("1").num_gpus == gets


def test_that_settings_history_and_declarations_reach_the_problem() -> None:
    policy = PolicyConfig(
        objective="price-rank",
        min_age_s=60.0,
        max_wait_s=600.0,
        seed=5,
        account_limits=(("*", 4),),
        user_weights=(("ann", 2.0),),
        gpu_speeds=(("t4", 1.0),),
    )
    newest = sample(throughput=1.0, efficiency=1.0, progress=10.0, epoch=2, total_epochs=6)
    records = [record("1", sample=newest), record("2", last_allocated_at=NOON - timedelta(minutes=3))]
    jobs = [job("1", on={"n0": 1}), job("2", JobState.PENDING)]
    seen = cluster_picture.build_picture(snapshot([node("n0", used=1)], jobs), records)
    found = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30, policy=policy)
    assert (found.objective.name, found.max_wait_s) == ("price-rank", 600.0)
    assert (found.seed, found.gpu_speeds, found.uneven) == (5, (("t4", 1.0),), False)
    assert found.limits == (GpuLimit(kind="account", name="physics", max_gpus=4),)
    first, second = found.jobs
    assert (first.weight, first.progress, first.epochs_done, first.epochs_declared) == (2.0, 640.0, 2.0, 6.0)
    assert (first.waiting_s, second.waiting_s) == (0.0, 180.0)


def test_that_a_job_that_never_ran_has_waited_since_it_came() -> None:
    seen = cluster_picture.build_picture(snapshot([node("n0")], [job("1", JobState.PENDING)]), [record("1")])
    (one,) = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30).jobs
    assert one.waiting_s == one.age_s == 600.0


def test_that_a_job_may_use_its_partitions_nodes_only() -> None:
    nodes = [node("n0"), node("n1", partitions=("debug",)), node("n2", partitions=("main", "debug"))]
    seen = cluster_picture.build_picture(snapshot(nodes, [job("1", JobState.PENDING)]), [record("1")])
    (one,) = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30).jobs
    assert one.partition_nodes == frozenset({"n0", "n2"})


def test_that_a_job_is_offered_the_nodes_only_on_which_slurm_would_start_it() -> None:
    nodes = [
        node("n0", partitions=("a",), features=frozenset({"fast"})),
        node("n1", partitions=("b",), features=frozenset({"fast"})),
        node("n2", partitions=("c",), features=frozenset({"fast"})),
        node("n3", partitions=("a", "b")),
    ]
    places = {
        "1": {"partition": "a,b"},
        "2": {"partition": "a,b", "feature_sets": (frozenset({"fast"}),)},
        "3": {"partition": "a,b", "excluded_nodes": ("n3", "n0")},
        "4": {"partition": "a,b"},
    }
    jobs = [job(job_id, JobState.PENDING, **place) for job_id, place in places.items()]
    records = [record(job_id, required_nodes=("n1",) if job_id == "4" else ()) for job_id in places]
    seen = cluster_picture.build_picture(snapshot(nodes, jobs), records)
    problem = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30)
    assert {one.job_id: set(one.partition_nodes or ()) for one in problem.jobs} == {
        "1": {"n0", "n1", "n3"},
        "2": {"n0", "n1"},
        "3": {"n1"},
        "4": {"n1"},
    }


def test_that_a_waiting_job_that_slurm_would_not_start_takes_no_part() -> None:
    waiting = job("1", JobState.PENDING, reason="PartitionDown", blocked_because="its partition is down")
    seen = cluster_picture.build_picture(snapshot([node("n0")], [waiting]), [record("1")])
    assert problem_of(seen) == {}
    assert problem_building.not_moved_because(seen.managed[0]) == "its partition is down"


def test_that_a_job_whose_owner_named_several_nodes_stays_as_it_is() -> None:
    named = record("1", required_nodes=("n0", "n1"))
    running = job("1", on={"n0": 1, "n1": 1}, required_nodes=("n0", "n1"))
    seen = cluster_picture.build_picture(
        snapshot([node("n0", used=1), node("n1", used=1)], [running]), [named]
    )
    assert reason_of(seen) == "its owner asks for 2 nodes by name (--nodelist)"
    waiting = job("1", JobState.PENDING, required_nodes=("n0", "n1"))
    assert (
        problem_of(cluster_picture.build_picture(snapshot([node("n0"), node("n1")], [waiting]), [named]))
        == {}
    )


def test_that_nodes_named_by_a_move_do_not_bind_the_next_one() -> None:
    moved = job("1", on={"n0": 2}, required_nodes=("n0",), restart_count=1)
    seen = cluster_picture.build_picture(snapshot([node("n0", used=2), node("n1")], [moved]), [record("1")])
    (one,) = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30).jobs
    assert one.partition_nodes is None


HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("in_s", "limit_s", "usable"),
    [
        # It runs since five minutes: what is left of its time, and a move, end just before.
        (3600, 3600 - 120 + 300, True),
        (3600, 3600 - 60 + 300, False),
        (3600, 7200, False),
        (3600, None, False),
        (-60, 600, False),  # it has begun
    ],
)
def test_that_a_node_is_usable_where_the_job_and_a_move_end_before_its_next_reservation(
    in_s: float, limit_s: float | None, usable: bool
) -> None:
    reserved = node("n1", reserved_from=NOON + timedelta(seconds=in_s))
    seen = snapshot([node("n0", used=1), reserved], [job("1", on={"n0": 1}, time_limit_s=limit_s)])
    picture = cluster_picture.build_picture(seen, [record("1")])
    (one,) = problem_building.build_problem(picture, now=NOON, default_restart_delay_s=30).jobs
    assert one.partition_nodes == (None if usable else frozenset({"n0"}))


def test_that_a_running_job_that_fits_nowhere_stays_until_the_reservation_is_over() -> None:
    """It is neither grown on its node, nor moved to one where it could not start."""
    for ahead, moved in ((HOUR, False), (None, True)):
        reserved_from = None if ahead is None else NOON + ahead
        nodes = [node(name, reserved_from=reserved_from, used=name == "n0") for name in ("n0", "n1")]
        seen = snapshot(nodes, [job("1", on={"n0": 1})])
        picture = cluster_picture.build_picture(seen, [record("1")])
        problem = problem_building.build_problem(picture, now=NOON, default_restart_delay_s=30)
        decision = decide(problem)
        assert not decision.excluded
        assert (decision.allocation("1") != Allocation.of({"n0": 1})) == moved
