"""A decision's upper bound: valid for every solution that serves as many jobs, and near the best one."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import Phase, settings
from hypothesis import given as for_all
from hypothesis import strategies as st

from pollux_slurm.model import Problem
from pollux_slurm.policy import decide
from tests.policy import rules
from tests.policy.builders import job, linear_model, node, nodes, problem
from tests.policy.problems import random_problem, with_everything

rngs = st.randoms(use_true_random=False)
QUICKLY = (Phase.explicit, Phase.reuse, Phase.generate)


def in_partitions(rng: random.Random, plain: Problem) -> Problem:
    """Return the problem with most jobs in partitions of some nodes, none of which need be alike."""
    names = [one.name for one in plain.nodes]
    jobs = [
        dataclasses.replace(one, partition_nodes=frozenset(name for name in names if rng.random() < 0.6))
        if rng.random() < 0.8
        else one
        for one in plain.jobs
    ]
    return dataclasses.replace(plain, jobs=tuple(jobs))


@settings(max_examples=40, deadline=None, phases=QUICKLY)
@for_all(rngs, st.integers(1, 3), st.sampled_from(["search", "greedy"]))
def test_that_no_answer_that_serves_as_many_is_worth_more(
    rng: random.Random, num_jobs: int, solver: str
) -> None:
    small = random_problem(rng, num_nodes=3, num_gpus=2, num_jobs=num_jobs)
    small = in_partitions(rng, with_everything(rng, small))
    weights = [rng.choice([1e-6, 1.0, 1.0, 1e6]) for _ in small.jobs]
    jobs = [dataclasses.replace(one, weight=w) for one, w in zip(small.jobs, weights, strict=True)]
    small = dataclasses.replace(small, jobs=tuple(jobs))
    found = decide(small, solver=solver, effort=rng.choice([0.02, 1.0]))
    waiting, best = rules.best(small, [job_id for job_id, _ in found.excluded])
    if found.upper_bound is not None and waiting == sum(not one.allocation for one in found.jobs):
        assert found.upper_bound >= best * (1 - 1e-9)
        assert found.gap == pytest.approx(1 - found.fitness / found.upper_bound)


@settings(max_examples=15, deadline=None, phases=QUICKLY)
@for_all(rngs, st.integers(3, 12))
def test_that_no_solver_exceeds_the_bound_of_another(rng: random.Random, num_jobs: int) -> None:
    large = in_partitions(rng, random_problem(rng, num_nodes=6, num_gpus=4, num_jobs=num_jobs))
    answers = [decide(large, solver=solver, effort=0.05) for solver in ("search", "greedy")]
    answers.append(decide(large, effort=1.0))
    for one in answers:
        for other in answers:
            waiting = [sum(not job.allocation for job in answer.jobs) for answer in (one, other)]
            if one.upper_bound is not None and waiting[0] == waiting[1]:
                assert other.fitness <= one.upper_bound * (1 + 1e-12)


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize(("left", "right", "many"), [(4, 20, 30), (16, 16, 120)])
def test_that_a_partitions_plenty_does_not_hide_anothers_shortage(
    typed: bool, left: int, right: int, many: int
) -> None:
    types = ("a", "b") if typed else (None, None)
    halves = [
        tuple(node(f"{name}{i}", 8, gpu_type=kind) for i in range(count))
        for name, count, kind in zip("ab", (left, right), types, strict=True)
    ]
    model = linear_model(sync_s=0.05, network_s=0.2)
    jobs = [
        job(f"{half}{i}", model=model, partition_nodes=frozenset(one.name for one in halves[half]))
        for half, count in ((0, many), (1, 2))
        for i in range(count)
    ]
    found = decide(problem((*halves[0], *halves[1]), *jobs))
    assert found.gap is not None
    assert found.gap < 0.005


def test_that_partitions_without_number_are_told_apart_as_far_as_is_worth_it() -> None:
    # Every job has its own three nodes: more ways to be eligible than there are prices.
    jobs = [
        job(str(i), max_gpus=6, partition_nodes=frozenset(f"n{(i + k) % 30}" for k in range(3)))
        for i in range(30)
    ]
    large = problem(nodes(30), *jobs)
    found = decide(large)
    assert rules.violations(large, {one.job_id: one.allocation for one in found.jobs}) == []
    assert found.gap is not None
    assert 0 <= found.gap < 0.35


def test_that_a_drained_node_is_not_taken_for_one_that_others_may_have() -> None:
    drained = tuple(node(f"d{i}", accepts_new=False) for i in range(8))
    found = decide(problem((*nodes(4), *drained), *(job(str(i)) for i in range(10))))
    assert found.gap == pytest.approx(0.0, abs=1e-6)


def test_that_the_bound_says_something_where_not_all_can_be_served() -> None:
    # 64 nodes have room for 64 jobs of five GPUs on one, and 32 of three on each of two: four of a hundred
    # wait.
    found = decide(problem(nodes(64, 8), *(job(str(i), min_gpus=5) for i in range(100))), effort=0.02)
    assert sum(not one.allocation for one in found.jobs) == 4
    assert found.gap is not None
    assert found.gap < 0.01


def test_that_a_proof_does_not_drown_in_what_waiting_costs() -> None:
    # One cannot be placed while n3 is drained. Beside what its waiting costs, at p = −4 and such weights, all
    # that the others differ in is less than the last digit: an answer 17 % below the best passed for proved.
    cluster = (
        *(node(f"n{i}", 3, gpu_type=kind) for i, kind in enumerate("bba")),
        node("n3", 3, gpu_type="b", accepts_new=False),
    )
    model = linear_model(sync_s=0.05, network_s=0.2)
    some = frozenset({"n1", "n2", "n3"})
    hopeless = job("hopeless", model=model, weight=1e-6, min_gpus=6, partition_nodes=some)
    heavy = job("heavy", model=model, weight=1e6, max_gpus=6)
    light = job("light", {"n1": 3}, model=model, weight=1e-6, max_gpus=3)
    small = problem(cluster, hopeless, heavy, light, exponent=-4.0)
    found = decide(small)
    waiting, best = rules.best(small)
    assert waiting == sum(not one.allocation for one in found.jobs) == 1
    assert found.upper_bound is not None
    assert found.upper_bound >= best * (1 - 1e-12)
    assert found.fitness <= best * (1 + 1e-12)


def test_that_what_pinned_jobs_leave_of_cpus_is_known() -> None:
    # Three GPUs of each node are free, and CPUs for one of them; one job could use all, without CPUs.
    cluster = tuple(node(f"n{i}", 4, num_cpus=64) for i in range(8))
    pinned = [job(f"p{i}", {f"n{i}": 1}, pinned=True, cpus_per_gpu=62) for i in range(8)]
    model = linear_model(network_s=1e3)
    hungry = [job(f"h{i}", model=model, cpus_per_gpu=2) for i in range(6)]
    found = decide(problem(cluster, *pinned, *hungry, job("free", model=model, cpus_per_gpu=0)), effort=0.02)
    assert {one.allocation.num_gpus for one in found.jobs if one.job_id.startswith("h")} == {1}
    assert found.allocation("free").num_gpus == 3
    assert found.gap == pytest.approx(0.0, abs=1e-4)
