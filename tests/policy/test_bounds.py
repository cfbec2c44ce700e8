"""The budget optimum and its bound, against trying everything."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from pollux_slurm.policy.bound import solve_dual
from pollux_slurm.policy.knapsack import choose
from pollux_slurm.policy.options import Option


def option(num_gpus: int, value: float) -> Option:
    return Option(num_nodes=1, per_node=num_gpus, num_gpus=num_gpus, speedup=0.0, penalty=1.0, value=value)


option_lists = st.lists(
    st.lists(st.builds(option, st.integers(0, 6), st.floats(-10, 10)), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
)


def best(options: list[list[Option]], budget: int) -> float:
    sums = [
        sum(o.value for o in picks)
        for picks in itertools.product(*options)
        if sum(o.num_gpus for o in picks) <= budget
    ]
    return max(sums, default=-math.inf)


@for_all(option_lists, st.integers(0, 15))
def test_that_the_budget_optimum_is_the_best_of_all_choices(options: list[list[Option]], budget: int) -> None:
    chosen = choose(options, budget)
    if chosen is None:
        assert best(options, budget) == -math.inf
    else:
        assert all(one in choices for one, choices in zip(chosen, options, strict=True))
        assert sum(o.num_gpus for o in chosen) <= budget
        assert sum(o.value for o in chosen) == pytest.approx(best(options, budget), abs=1e-9)


@for_all(option_lists, st.integers(0, 15))
def test_that_no_choice_exceeds_the_bound(options: list[list[Option]], budget: int) -> None:
    assert best(options, budget) <= solve_dual(options, budget).bound + 1e-9


def test_that_the_price_is_what_one_more_gpu_is_worth() -> None:
    # Worth 5 for the first GPU of each of two jobs, 3 for the second: with three GPUs, the third buys a 3.
    options = [[option(0, 0.0), option(1, 5.0), option(2, 8.0)]] * 2
    found = solve_dual(options, 3)
    assert found.price == pytest.approx(3.0)
    assert found.bound == pytest.approx(13.0)


def test_that_gpus_nobody_wants_cost_nothing() -> None:
    found = solve_dual([[option(0, 0.0), option(2, 4.0)]], 10)
    assert found.price == 0.0
    assert found.bound == 4.0


def test_that_nobody_is_worth_nothing() -> None:
    assert solve_dual([], 5).bound == 0.0
    assert choose([], 5) == []
