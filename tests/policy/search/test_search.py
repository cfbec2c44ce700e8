"""The search against HiGHS, which takes no notice of prices, parts and starts, and finds the best answer."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from pollux_slurm.model import Decision, Problem
from pollux_slurm.policy import decide
from tests.policy import highs, rules
from tests.policy.problems import random_problem, with_everything


def made_up(rng: random.Random, num_nodes: int, num_jobs: int, *, everything: bool = True) -> Problem:
    """Return a problem with the default exponent: sums by others are beyond the precision of HiGHS."""
    plain = random_problem(rng, num_nodes=num_nodes, num_gpus=4, num_jobs=num_jobs)
    one = with_everything(rng, plain) if everything else plain
    return dataclasses.replace(one, objective=dataclasses.replace(one.objective, exponent=-1.0))


def best_by_highs(problem: Problem, found: Decision) -> tuple[int, float]:
    return highs.best(problem, [job_id for job_id, _ in found.excluded])


def num_waiting(problem: Problem, found: Decision) -> int:
    return rules.num_waiting(problem, {job.job_id: job.allocation for job in found.jobs})


@settings(max_examples=20, deadline=None)
@for_all(st.randoms(use_true_random=False), st.integers(1, 3))
def test_that_highs_finds_what_trying_every_answer_finds(rng: random.Random, num_jobs: int) -> None:
    one = made_up(rng, 2, num_jobs)
    waiting, fitness = rules.best(one)
    assert highs.best(one) == (waiting, pytest.approx(fitness))


@settings(max_examples=20, deadline=None)
@for_all(st.randoms(use_true_random=False), st.integers(1, 6), st.integers(1, 14))
def test_that_highs_has_no_better_answer_than_the_bound_says(
    rng: random.Random, num_nodes: int, num_jobs: int
) -> None:
    one = made_up(rng, num_nodes, num_jobs)
    found = decide(one)
    waiting, best = best_by_highs(one, found)
    assert num_waiting(one, found) >= waiting
    if found.upper_bound is not None and num_waiting(one, found) == waiting:
        assert found.fitness <= best * (1 + 1e-6)
        assert found.upper_bound >= best * (1 - 1e-6)


def test_that_most_answers_are_as_good_as_those_of_highs() -> None:
    missed = []
    for seed in range(12):
        rng = random.Random(seed)
        one = made_up(rng, 6, rng.randint(10, 20))
        found = decide(one)
        waiting, best = best_by_highs(one, found)
        if num_waiting(one, found) > waiting or found.fitness < 0.999 * best:
            missed.append(seed)
    assert len(missed) <= 1, missed


@pytest.mark.parametrize("seed", [0, 1, 4, 5])
def test_that_with_few_jobs_the_best_answer_is_found_and_known_to_be_the_best(seed: int) -> None:
    rng = random.Random(seed)
    one = made_up(rng, 4, rng.randint(4, 9), everything=False)
    found = decide(one)
    waiting, best = best_by_highs(one, found)
    assert num_waiting(one, found) == waiting
    assert found.fitness == pytest.approx(best, rel=1e-9)
    assert found.gap == pytest.approx(0.0, abs=1e-6)


def test_that_even_shares_are_tried_where_the_choices_at_the_prices_do_not_pack() -> None:
    # With so little effort, no part is solved again that would make up for it.
    rng = random.Random(24)
    one = made_up(rng, 4, rng.randint(3, 8), everything=False)
    found = decide(one, effort=0.02)
    waiting, best = best_by_highs(one, found)
    assert num_waiting(one, found) == waiting
    assert found.fitness == pytest.approx(best, rel=1e-9)
