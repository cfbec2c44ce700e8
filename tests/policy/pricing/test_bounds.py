"""The dual's bound and prices, against trying every choice within the budgets."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from pollux_slurm.model import GpuLimit, MovingRules, Problem
from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.decide import build_candidates
from pollux_slurm.policy.pricing.dual_bound import Dual, solve_dual
from pollux_slurm.policy.pricing.relaxation import Relaxation
from pollux_slurm.policy.problem.node_sets import Cluster
from tests.policy import rules
from tests.policy.builders import job, linear_model, node, nodes, problem
from tests.policy.problems import random_problem


def solved(one: Problem) -> tuple[Candidates, Dual, list[int]]:
    candidates = build_candidates(one, list(one.jobs))
    kinds = candidates.tables.kind_of_node
    cluster = Cluster(candidates.tables.facts, one.jobs)
    capacity = [0] * len(candidates.tables.kinds)
    for name, (gpus, _, _) in zip(cluster.names, cluster.capacity.tolist(), strict=True):
        capacity[kinds[name]] += gpus

    return candidates, solve_dual(candidates, Relaxation(candidates, cluster)), capacity


def best(candidates: Candidates, capacity: list[int]) -> float:
    """Try every choice of one candidate per job; place aside, everything shared is kept."""
    found = -math.inf
    lists = [
        [
            candidates.candidate(row, column)
            for column in (-1, *np.flatnonzero(candidates.allowed[row]).tolist())
        ]
        for row in range(candidates.num_jobs)
    ]
    for picks in itertools.product(*lists):
        left = list(capacity)
        limits = candidates.group_budget.tolist()
        moves = candidates.max_moves if candidates.max_moves is not None else 10**6
        for row, candidate in enumerate(picks):
            if candidate.stays:
                for kind, gpus in enumerate(candidates.stay_gpus[row].tolist()):
                    left[kind] -= gpus
            else:
                left[candidate.kind] -= candidate.num_gpus
                moves -= bool(candidates.jobs[row].current)
            for group in range(len(limits)):
                limits[group] -= candidate.num_gpus * int(candidates.members[row, group])
        if min([*left, *limits, moves]) >= 0:
            found = max(found, sum(candidate.value for candidate in picks))
    return found


@settings(max_examples=30, deadline=None)
@for_all(st.randoms(use_true_random=False))
def test_that_no_answer_exceeds_the_bound(rng: random.Random) -> None:
    one = random_problem(rng, num_nodes=2, num_gpus=4, num_jobs=3)
    candidates, dual, _ = solved(one)
    waiting, fitness = rules.best(one)
    cost = waiting * float(candidates.waiting_cost.max(initial=0.0))
    assert fitness <= candidates.scores.fitness_of_sum(dual.bound + cost) * (1 + 1e-6)


@settings(max_examples=30, deadline=None)
@for_all(st.randoms(use_true_random=False))
def test_that_a_bound_low_enough_is_a_bound_and_lowered_no_further(rng: random.Random) -> None:
    one = random_problem(rng, num_nodes=3, num_gpus=4, num_jobs=5)
    candidates, least, _ = solved(one)
    relaxation = Relaxation(candidates, Cluster(candidates.tables.facts, one.jobs))
    first = solve_dual(candidates, relaxation, enough=np.inf)
    enough = least.bound + 0.01 * abs(least.bound)
    near = solve_dual(candidates, relaxation, enough=enough)
    assert not first.prices.any(), "the first bound, at no price, is low enough"
    assert least.bound <= near.bound <= max(enough, least.bound)
    if first.bound > enough:
        assert near.bound <= first.bound


def test_that_the_price_is_what_one_more_gpu_is_worth() -> None:
    # Two jobs and three GPUs: at two GPUs each, the next one is worth 1/(1 + floor) − 1/(1.5 + floor) to one.
    jobs = [job(name, model=linear_model()) for name in "ab"]
    candidates, dual, _ = solved(problem(nodes(1, 3), *jobs))
    value = candidates.value[0].tolist()
    assert dual.prices[0] == pytest.approx(value[1] - value[0])
    assert dual.bound == pytest.approx(value[0] + value[1])


def test_that_gpus_nobody_wants_cost_nothing() -> None:
    _, dual, _ = solved(problem(nodes(2), job("a", max_gpus=2)))
    assert not dual.prices.any()


def test_that_nobody_is_worth_nothing() -> None:
    _, dual, _ = solved(problem(nodes(2)))
    assert dual.bound == 0.0


def test_that_limits_and_moves_have_their_own_prices() -> None:
    one = Problem(
        nodes=nodes(4),
        jobs=(
            job("a", account="x"),
            job("b", account="x"),
            job("c", {"n0": 1}),
            job("d", {"n1": 1}),
        ),
        limits=(GpuLimit(kind="account", name="x", max_gpus=2),),
        moving=MovingRules(max_reallocations=1),
    )
    candidates, dual, capacity = solved(one)
    _, _, _, of_limit, of_moves = dual.prices.tolist()
    assert of_limit > 0
    assert of_moves > 0
    assert best(candidates, capacity) <= dual.bound + 1e-9
    assert dual.bound - best(candidates, capacity) <= 0.5 * abs(dual.bound)


def test_that_one_type_short_beside_another_left_over_has_its_price() -> None:
    # All four would have the fast GPUs, of which there are half as many; of the slow ones there are plenty.
    fast = [node(f"a{i}", 4, gpu_type="a") for i in range(2)]
    slow = [node(f"b{i}", 4, gpu_type="b") for i in range(50)]
    models = (("a", linear_model(network_s=1e3)),)
    jobs = [job(str(i), model=None, models=models, max_gpus=4) for i in range(4)]
    one = dataclasses.replace(problem((*fast, *slow), *jobs), gpu_speeds=(("a", 10.0), ("b", 1.0)))
    _, dual, _ = solved(one)
    assert dual.prices[0] > 0
