"""Each answer to "why not more?", in the smallest problem where it is the true one."""

from __future__ import annotations

import dataclasses

import pytest

from pollux_slurm.model import (
    Allocation,
    BatchLimits,
    Configuration,
    GoodputModel,
    GpuLimit,
    JobDecision,
    MovingRules,
    Objective,
    ThroughputParameters,
)
from pollux_slurm.policy import decide, explanation
from tests.policy.builders import job, linear_model, node, nodes, problem


def about_a(*jobs, cluster=None) -> JobDecision:
    found = decide(problem(cluster or nodes(2), *jobs))
    return next(decision for decision in found.jobs if decision.job_id == "a")


def test_that_a_job_with_all_that_helps_is_bound_by_nothing() -> None:
    assert about_a(job("a", model=linear_model(sync_s=1e3))).bound_by == "nothing"


def test_that_a_job_with_the_whole_cluster_is_bound_by_that_or_its_maximum() -> None:
    """Whether more would be faster is not asked: there are no more."""
    assert about_a(job("a")).bound_by == "partition"
    assert about_a(job("a", max_gpus=16)).bound_by == "partition"
    assert about_a(job("a", max_gpus=8)).bound_by == "max_gpus"


def test_that_a_job_beside_free_gpus_is_not_said_to_have_them_all() -> None:
    """No configuration of the problem is larger: by the cap, or since shares are equal on all nodes."""
    at_cap = about_a(job("a", {"n0": 4}, model=model_of_batch(4, seen=2)), cluster=nodes(2, 8))
    assert (at_cap.allocation.num_gpus, at_cap.bound_by) == (4, "nothing")
    uneven = about_a(job("a"), cluster=(node("n0", 8), node("n1", 4)))
    assert (uneven.allocation.num_gpus, uneven.bound_by) == (8, "nothing")


def test_that_the_cluster_without_a_free_gpu_is_the_bound() -> None:
    assert about_a(job("a"), job("b"), cluster=nodes(1)).bound_by == "capacity"


def test_that_the_users_maximum_is_the_bound() -> None:
    assert about_a(job("a", max_gpus=2)).bound_by == "max_gpus"


def model_of_batch(batch: int, *, seen: int = 64) -> GoodputModel:
    return dataclasses.replace(linear_model(seen=seen), limits=BatchLimits(initial_batch_size=batch))


@pytest.mark.parametrize("batch", [2, 4], ids=["cannot be shared by three", "three are as slow as two"])
def test_that_a_maximum_does_not_bind_a_job_below_it(batch: int) -> None:
    """Four GPUs would share a batch of 4 faster, three would not; a batch of 2 neither can share."""
    below_max = about_a(job("a", {"n0": 2}, max_gpus=3, model=model_of_batch(batch)))
    assert (below_max.allocation.num_gpus, below_max.bound_by) == (2, "nothing")
    on_one = job("a", {"n0": 2}, model=model_of_batch(batch), partition_nodes=frozenset({"n0"}))
    here = about_a(on_one, job("b", {"n1": 1}), cluster=(node("n0", 3), node("n1", 8)))
    assert (here.allocation.num_gpus, here.bound_by) == (2, "nothing")


def test_that_exploration_does_not_bind_a_job_below_its_cap() -> None:
    # Six GPUs would share a batch of 6 faster than three, four and five would not.
    few = job("a", {"n0": 3}, model=model_of_batch(6, seen=1))
    found = about_a(few, job("b", {"n1": 1}), cluster=nodes(2, 8))
    assert (found.allocation.num_gpus, found.bound_by) == (3, "nothing")


def test_that_no_limit_binds_a_job_that_more_gpus_would_hardly_speed_up() -> None:
    hardly = dataclasses.replace(
        linear_model(),
        throughput=ThroughputParameters(
            alpha_g=1.0, beta_g=1e-6, alpha_n=0.0, beta_n=0.0, alpha_l=0.0, beta_l=0.0, gamma=1.0
        ),
    )
    assert about_a(job("a", {"n0": 1}, max_gpus=1, model=hardly)).bound_by == "nothing"


def test_that_too_few_measurements_are_the_bound() -> None:
    assert about_a(job("a", model=linear_model(seen=1))).bound_by == "exploration"
    assert about_a(job("a", model=None)).bound_by == "exploration"


def test_that_the_price_of_a_restart_is_the_bound() -> None:
    assert about_a(job("a", {"n0": 1}, age_s=0.0, restart_delay_s=1e6)).bound_by == "penalty"


def test_that_free_gpus_in_the_wrong_places_are_the_bound() -> None:
    # One GPU is free on each node; a network as slow as this helps nobody.
    pinned = (job("p", {"n0": 2}, pinned=True), job("q", {"n1": 3}, pinned=True))
    found = about_a(job("a", model=linear_model(network_s=1e3)), *pinned)
    assert found.allocation.num_gpus == 2
    assert found.bound_by == "placement"


def test_that_cpus_or_memory_are_the_bound_where_gpus_are_free() -> None:
    # Two GPUs are free; "p" has all CPUs, or all memory, of the node.
    hungry = job("p", {"n0": 2}, pinned=True, cpus_per_gpu=32)
    assert about_a(job("a"), hungry, cluster=nodes(1)).bound_by == "cpus"
    large = job("p", {"n0": 2}, pinned=True, memory_per_gpu_mb=500_000)
    assert about_a(job("a", memory_per_gpu_mb=1), large, cluster=nodes(1)).bound_by == "memory"
    assert about_a(job("a"), large, cluster=nodes(1)).bound_by == "capacity"


def test_that_cpus_or_memory_are_the_bound_where_a_whole_node_has_too_few() -> None:
    found = about_a(job("a", cpus_per_gpu=30, model=linear_model(network_s=1e3)))
    assert (found.allocation.num_gpus, found.bound_by) == (2, "cpus")
    found = about_a(job("a", memory_per_gpu_mb=300_000, model=linear_model(network_s=1e3)))
    assert (found.allocation.num_gpus, found.bound_by) == (3, "memory")


@pytest.mark.parametrize(
    ("needs", "because"),
    [
        ({"cpus_per_gpu": 65}, "no nodes that it may use have 65 CPUs for each of its GPUs"),
        (
            {"memory_per_gpu_mb": 2 * 10**6},
            "no nodes that it may use have 2000000 MB of memory for each of its GPUs",
        ),
        (
            {"min_gpus": 5, "partition_nodes": frozenset({"n0"})},
            "the nodes that it may use are too small for its GPUs, even if all were free",
        ),
        ({"min_gpus": 4, "rigid": True, "cpus_per_gpu": 33}, "no nodes that it may use have 33 CPUs"),
    ],
)
def test_that_a_job_for_which_no_node_is_large_enough_is_excluded_with_the_resource(
    needs: dict[str, object], because: str
) -> None:
    found = decide(problem(nodes(2), job("a", **needs), job("b")))
    assert dict(found.excluded)["a"].startswith(because)
    assert found.allocation("b").num_gpus == 8
    # A running job on such nodes keeps running.
    held = {"n0": 1}
    running = decide(problem(nodes(2), job("a", held, **needs), job("b")))
    assert not running.excluded
    assert running.allocation("a").as_dict() == held


def test_that_explanations_ignore_nodes_outside_the_jobs_partition() -> None:
    found = about_a(job("a", partition_nodes=frozenset({"n0"})), job("b"))
    assert (found.allocation.as_dict(), found.bound_by) == ({"n0": 4}, "partition")
    assert found.runner_up == Configuration(num_nodes=1, num_gpus=3)
    drained = (node("n0"), node("n1", accepts_new=False))
    assert about_a(job("a"), cluster=drained).bound_by == "partition"


def test_that_a_runner_up_is_within_the_jobs_limit() -> None:
    limits = (GpuLimit(kind="account", name="x", max_gpus=3),)
    one = dataclasses.replace(problem(nodes(1), job("a", account="x")), limits=limits)
    found = decide(one).jobs[0]
    assert (found.allocation.num_gpus, found.bound_by) == (3, "limit")
    assert found.runner_up == Configuration(num_nodes=1, num_gpus=2)


def test_that_prices_are_those_of_the_jobs_own_nodes() -> None:
    # Three share n0, one has n1 for itself: a GPU more is worth something to others on n0 only.
    crowd = [job(name, partition_nodes=frozenset({"n0"})) for name in "abc"]
    found = decide(problem(nodes(2), *crowd, job("d", partition_nodes=frozenset({"n1"}), max_gpus=2)))
    explained = {one.job_id: one for one in found.jobs}
    assert explained["a"].cost == pytest.approx(
        explained["a"].allocation.num_gpus * dict(found.gpu_prices)[""]
    )
    assert explained["a"].cost > 0
    assert explained["d"].cost == 0
    assert explained["d"].runner_up_cost == 0


def test_that_a_rigid_job_waits_for_what_is_missing_and_has_one_size() -> None:
    waiting = about_a(job("a", rigid=True), job("p", {"n0": 4}, pinned=True), cluster=nodes(1))
    assert waiting.bound_by == "capacity"
    assert about_a(job("a", {"n0": 1}, rigid=True)).bound_by == "rigid"


def test_that_a_job_too_young_to_be_moved_is_bound_by_that() -> None:
    one = problem(nodes(2), job("a", {"n0": 1}, age_s=10.0))
    one = dataclasses.replace(one, moving=MovingRules(min_age_s=60.0))
    assert decide(one).jobs[0].bound_by == "young"


def test_that_a_pinned_job_is_bound_by_that() -> None:
    assert about_a(job("a", {"n0": 1}, pinned=True)).bound_by == "pinned"


def test_that_the_explanation_of_a_pinned_job_has_the_reason() -> None:
    found = about_a(job("a", {"n0": 1}, pinned=True, pinned_because="it is being moved"))
    assert "bound by pinned (it is being moved)" in explanation(found)
    assert "bound by pinned (it keeps its allocation)" in explanation(
        about_a(job("a", {"n0": 1}, pinned=True))
    )


def test_that_a_decision_has_the_predicted_speedup_goodput_and_batch() -> None:
    found = about_a(job("a"), job("b"), cluster=nodes(2))
    # 5,040 examples on four GPUs of a thousand a second each; the fair share is these four.
    assert found.speedup == 1.0
    assert found.goodput == 4000.0
    assert found.penalty == 1.0
    assert found.batch is not None
    assert found.batch.atomic_batch_size == 1260


def test_that_the_runner_up_is_the_jobs_next_best() -> None:
    found = about_a(job("a"), cluster=(node("n0", 4),))
    assert found.runner_up == Configuration(num_nodes=1, num_gpus=3)
    assert found.runner_up_speedup == 0.75


@pytest.mark.parametrize("objective", ["generalized-mean", "price-rank", "attained-work"])
def test_that_the_next_best_speedup_is_in_the_unit_of_the_chosen_one(objective: str) -> None:
    # Two linear jobs on two nodes: one node each is the fair share, and half of it half as fast.
    asked = dataclasses.replace(
        problem(nodes(2), job("a", max_gpus=4), job("b", max_gpus=4)), objective=Objective(name=objective)
    )
    found = decide(asked).jobs[0]
    assert (found.allocation.num_gpus, found.speedup) == (4, pytest.approx(1.0))
    assert found.runner_up is not None
    assert found.runner_up_speedup == pytest.approx(found.runner_up.num_gpus / 4)


def test_that_a_job_that_is_held_off_neither_grows_nor_moves_and_gives_up_what_others_need() -> None:
    alone = about_a(job("a", {"n0": 2}, held_off=True))
    assert (alone.allocation, alone.bound_by) == (Allocation.of({"n0": 2}), "young")
    assert about_a(job("a", {"n0": 2})).allocation.num_gpus > 2
    spread = about_a(job("a", {"n0": 1, "n1": 1}, held_off=True))
    assert spread.allocation == Allocation.of({"n0": 1, "n1": 1})
    full = about_a(job("a", {"n0": 4}, held_off=True), job("r", min_gpus=2, rigid=True), cluster=nodes(1))
    assert 0 < full.allocation.num_gpus <= 2
    assert about_a(job("a", held_off=True)).allocation.num_gpus > 0, "a job that waits is given GPUs"


def test_that_a_job_for_one_node_is_never_given_several() -> None:
    assert about_a(job("a")).allocation.num_nodes == 2
    assert about_a(job("a", one_node=True)).allocation.configuration == Configuration(num_nodes=1, num_gpus=4)
    grown = about_a(job("a", {"n0": 1}, one_node=True)).allocation
    assert (grown.num_nodes, grown.num_gpus) == (1, 4)
    # What it was started on it may keep.
    assert about_a(job("a", {"n0": 4, "n1": 4}, one_node=True)).allocation.num_gpus > 0
