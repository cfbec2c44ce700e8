"""What holds for every solver: the rules, the bound, the same answer twice."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from pollux_slurm.errors import UsageError
from pollux_slurm.model import Objective
from pollux_slurm.policy import SOLVERS, decide, fitness_of
from tests.policy import rules
from tests.policy.builders import job, nodes, problem
from tests.policy.problems import random_problem, with_everything


@settings(max_examples=15, deadline=None)
@for_all(st.randoms(use_true_random=False), st.integers(1, 6), st.integers(1, 12))
def test_that_greedy_keeps_the_rules_and_the_bound(rng: random.Random, num_nodes: int, num_jobs: int) -> None:
    one = random_problem(rng, num_nodes=num_nodes, num_gpus=4, num_jobs=num_jobs)
    found = decide(one, solver="greedy")
    assert rules.violations(one, {d.job_id: d.allocation for d in found.jobs}) == []
    assert found.upper_bound is None or found.fitness <= found.upper_bound


@settings(max_examples=6, deadline=None)
@for_all(st.randoms(use_true_random=False), st.integers(1, 6), st.integers(1, 10))
def test_that_genetic_keeps_the_rules_and_is_no_better_than_the_bound(
    rng: random.Random, num_nodes: int, num_jobs: int
) -> None:
    one = random_problem(rng, num_nodes=num_nodes, num_gpus=4, num_jobs=num_jobs)
    found = decide(one, solver="genetic")
    assert rules.violations(one, {d.job_id: d.allocation for d in found.jobs}) == []
    assert decide(one, solver="genetic") == found
    waiting = sum(not d.allocation for d in found.jobs)
    exact = decide(one)
    served = sum(not d.allocation for d in exact.jobs)
    if exact.upper_bound is None:  # nothing could be proved, as where no job may have a GPU
        assert waiting >= served
    else:
        assert (waiting, -found.fitness) >= (served, -exact.upper_bound * (1 + 1e-9))


@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_that_a_waiting_job_is_served_by_one_that_can_spare_a_gpu(solver: str) -> None:
    found = decide(problem(nodes(1), job("old", {"n0": 4}), job("new", model=None)), solver=solver)
    assert found.allocation("new").num_gpus == 1
    assert found.solver == solver


def test_that_an_unknown_solver_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="genetic, greedy, search"):
        decide(problem(nodes(1), job("a")), solver="magic")


def test_that_a_greedy_search_that_is_stopped_keeps_the_rules_and_says_so() -> None:
    one = problem(nodes(1), job("old", {"n0": 1}), job("new"))
    ticks = iter(range(10**6))
    found = decide(one, solver="greedy", time_limit_s=1.0, clock=lambda: float(next(ticks)))
    assert rules.violations(one, {d.job_id: d.allocation for d in found.jobs}) == []
    assert found.timed_out


@pytest.mark.parametrize("num_jobs", [1, 2, 8, 12])
def test_that_the_watchdog_returns_an_answer_and_reports_a_timeout(num_jobs: int) -> None:
    ticks = iter(range(10**6))
    jobs = [job(str(index)) for index in range(num_jobs)]
    found = decide(problem(nodes(3), *jobs), time_limit_s=1.0, clock=lambda: float(next(ticks)))
    assert found.timed_out
    assert all(decision.allocation for decision in found.jobs)
    assert found.upper_bound is not None
    assert found.upper_bound >= found.fitness > 0.5


@pytest.mark.parametrize("name", ["generalized-mean", "osdi21", "price-rank", "attained-work"])
@pytest.mark.parametrize("solver", ["search", "greedy"])
def test_that_the_fitness_of_a_decisions_allocations_is_that_of_the_decision(solver: str, name: str) -> None:
    one = random_problem(random.Random(5), num_nodes=4, num_gpus=4, num_jobs=7)
    one = dataclasses.replace(one, objective=Objective(name=name))
    found = decide(one, solver=solver)
    assert not found.excluded
    fitness = fitness_of(one, {decision.job_id: decision.allocation for decision in found.jobs})
    assert fitness == pytest.approx(found.fitness)
    assert found.fitness <= found.upper_bound
    assert found.gap == pytest.approx(1 - found.fitness / found.upper_bound)


def test_that_an_idle_gpu_goes_to_one_that_waits_where_no_running_job_may_move() -> None:
    # At the prices of this problem, waiting is worth as much as being served.
    rng = random.Random(3)
    one = with_everything(rng, random_problem(rng, num_nodes=4, num_gpus=2, num_jobs=14))
    one = dataclasses.replace(
        one,
        objective=dataclasses.replace(one.objective, exponent=-4.0),
        moving=dataclasses.replace(one.moving, max_reallocations=0, min_age_s=0.0),
    )
    waiting = [
        sum(not job.allocation for job in decide(one, solver=solver, effort=0.02).jobs)
        for solver in ("search", "greedy")
    ]
    assert waiting[0] <= waiting[1] == 10


@pytest.mark.parametrize("seed", [949, 1045, 1942])
def test_that_the_search_leaves_no_gpu_idle_that_one_job_alone_would_take(seed: int) -> None:
    # The search stops early on these problems, with idle GPUs that one job gains by.
    rng = random.Random(seed)
    num_jobs = rng.randint(3, 10)
    one = with_everything(rng, random_problem(rng, num_nodes=3, num_gpus=3, num_jobs=num_jobs))
    given = {found.job_id: found.allocation for found in decide(one, effort=0.02).jobs}
    better = [
        f"{each.job_id}: {place}"
        for each in one.jobs
        for place in rules.choices(one, each)
        if rules.worth(one, each, place) > rules.worth(one, each, given[each.job_id]) * (1 + 1e-6)
        and not rules.violations(one, {**given, each.job_id: place})
    ]
    assert better == []
