"""Running jobs that may be left without GPUs for a while, where the objective finds others worth more."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from pollux_slurm.model import Allocation, MovingRules, Problem
from pollux_slurm.policy import decide
from pollux_slurm.policy.decide import SOLVERS
from tests.policy import rules
from tests.policy.builders import job, nodes, problem
from tests.policy.problems import random_problem, with_everything


def pausing(one: Problem) -> Problem:
    return dataclasses.replace(one, moving=dataclasses.replace(one.moving, pauses=True))


@settings(max_examples=60, deadline=None)
@for_all(st.randoms(use_true_random=False), st.booleans())
def test_that_with_pauses_the_answer_is_the_best_of_all(rng: random.Random, everything: bool) -> None:
    one = random_problem(rng, num_nodes=2, num_gpus=3, num_jobs=rng.randint(1, 3))
    one = pausing(with_everything(rng, one) if everything else one)
    found = decide(one)
    if found.excluded:
        return
    answer = {decision.job_id: decision.allocation for decision in found.jobs}
    assert rules.violations(one, answer) == []
    waiting, best = rules.best(one)
    assert rules.num_waiting(one, answer) == waiting
    assert found.fitness == pytest.approx(best, rel=1e-6)
    assert found.upper_bound >= found.fitness


def full(*, pauses: bool) -> Problem:
    """A long job holds the only GPU, a short one waits; under price-rank the short one is worth more."""
    long = job("long", {"n0": 1}, max_gpus=1, progress=1e6, epochs_done=1.0, epochs_declared=100.0)
    short = job("short", max_gpus=1, progress=1e3, epochs_done=9.0, epochs_declared=10.0)
    one = problem(nodes(1, 1), long, short)
    objective = dataclasses.replace(one.objective, name="price-rank")
    return dataclasses.replace(one, objective=objective, moving=MovingRules(pauses=pauses))


def test_that_a_long_job_gives_way_to_a_short_one_where_it_may_be_paused() -> None:
    found = decide(full(pauses=True))
    assert not found.allocation("long")
    assert found.allocation("short").num_gpus == 1
    assert found.gap == pytest.approx(0.0, abs=1e-9)


def test_that_a_long_job_keeps_its_gpus_where_it_may_not_be_paused() -> None:
    assert decide(full(pauses=False)).allocation("long") == Allocation.of({"n0": 1})


@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_that_every_solver_keeps_the_rules_with_pauses(solver: str) -> None:
    for seed in range(12):
        one = pausing(random_problem(random.Random(seed), num_nodes=3, num_gpus=4, num_jobs=5))
        found = decide(one, solver=solver)
        answer = {decision.job_id: decision.allocation for decision in found.jobs}
        if not found.excluded:
            assert rules.violations(one, answer) == []


def test_that_a_pause_counts_as_a_move() -> None:
    one = full(pauses=True)
    none = dataclasses.replace(one, moving=MovingRules(pauses=True, max_reallocations=0))
    assert decide(none).allocation("long") == Allocation.of({"n0": 1})
