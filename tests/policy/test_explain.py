"""Each answer to "why not more?", in the smallest problem where it is the true one."""

from __future__ import annotations

from pollux_slurm.model import Configuration, JobDecision
from pollux_slurm.policy import decide, explanation
from tests.policy.builders import job, linear_model, node, nodes, problem


def about_a(*jobs, cluster=None) -> JobDecision:
    found = decide(problem(cluster or nodes(2), *jobs))
    return next(decision for decision in found.jobs if decision.job_id == "a")


def test_that_a_job_with_all_that_helps_is_bound_by_nothing() -> None:
    assert about_a(job("a", model=linear_model(sync_s=1e3))).bound_by == "nothing"
    assert about_a(job("a")).bound_by == "nothing"


def test_that_the_cluster_without_a_free_gpu_is_the_bound() -> None:
    assert about_a(job("a"), job("b"), cluster=nodes(1)).bound_by == "capacity"


def test_that_the_users_maximum_is_the_bound() -> None:
    assert about_a(job("a", max_gpus=2)).bound_by == "max_gpus"


def test_that_too_few_measurements_are_the_bound() -> None:
    assert about_a(job("a", model=linear_model(seen=1))).bound_by == "exploration"
    assert about_a(job("a", model=None)).bound_by == "exploration"


def test_that_the_price_of_a_restart_is_the_bound() -> None:
    assert about_a(job("a", {"n0": 1}, age_s=0.0)).bound_by == "penalty"


def test_that_free_gpus_in_the_wrong_places_are_the_bound() -> None:
    # One GPU is free on each node; a network as slow as this helps nobody.
    pinned = (job("p", {"n0": 2}, pinned=True), job("q", {"n1": 3}, pinned=True))
    found = about_a(job("a", model=linear_model(network_s=1e3)), *pinned)
    assert found.allocation.num_gpus == 2
    assert found.bound_by == "placement"


def test_that_a_pinned_job_is_bound_by_that() -> None:
    assert about_a(job("a", {"n0": 1}, pinned=True)).bound_by == "pinned"


def test_that_who_is_pinned_is_told_why() -> None:
    found = about_a(job("a", {"n0": 1}, pinned=True, pinned_because="it is being moved"))
    assert "bound by pinned (it is being moved)" in explanation(found)
    assert "bound by pinned (it keeps its place)" in explanation(about_a(job("a", {"n0": 1}, pinned=True)))


def test_that_the_decision_tells_what_is_predicted() -> None:
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
