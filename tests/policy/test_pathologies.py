"""What must not happen under `generalized-mean`, and the guards of the other objectives."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import Phase, assume, settings
from hypothesis import given as for_all
from hypothesis import strategies as st

from pollux_slurm.model import GpuLimit, Objective, Problem
from pollux_slurm.policy import decide
from pollux_slurm.policy.decide import build_candidates
from pollux_slurm.policy.objectives.price_rank import MAX_WEIGHT_RATIO
from tests.policy.builders import in_other_units, job, linear_model, nodes, problem, sizes
from tests.policy.packed import packed_problem
from tests.policy.problems import random_model, random_problem
from tests.policy.rules import violations

rngs = st.randoms(use_true_random=False)
QUICKLY = (Phase.explicit, Phase.reuse, Phase.generate)
OTHERS = ["price-rank", "attained-work"]


@settings(max_examples=60, deadline=None, phases=QUICKLY)
@for_all(rngs, st.integers(1, 12))
def test_that_all_are_served_when_all_minimums_fit_under_limits_and_pins(
    rng: random.Random, num_jobs: int
) -> None:
    one = packed_problem(rng, num_nodes=3, num_jobs=num_jobs)
    found = decide(one)
    assert not found.excluded
    assert [d.job_id for d in found.jobs if not d.allocation] == []
    assert violations(one, {d.job_id: d.allocation for d in found.jobs}) == []


@pytest.mark.parametrize("seed", [8, 30, 110, 120, 129])
def test_that_running_jobs_make_room_for_all_where_nothing_less_serves_all(seed: int) -> None:
    # Everyone has to be placed anew: found among larger problems, where nothing is proved.
    rng = random.Random(seed)
    found = decide(packed_problem(rng, num_nodes=8, num_jobs=rng.randint(15, 30)))
    assert [d.job_id for d in found.jobs if not d.allocation] == []


@pytest.mark.parametrize("name", OTHERS)
def test_that_other_objectives_starve_nobody_whose_minimum_fits(name: str) -> None:
    slow = [job(f"s{i}", model=linear_model(sync_s=50.0), age_s=1e5) for i in range(4)]
    fast = [job(f"f{i}", progress=1e9, epochs_done=1.0, epochs_declared=1e6) for i in range(8)]
    one = dataclasses.replace(problem(nodes(3), *slow, *fast), objective=Objective(name=name))
    assert min(sizes(decide(one)).values()) == 1


@pytest.mark.parametrize("num_jobs", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("sync_s", [0.0, 0.3, 1.0])
def test_that_equal_new_jobs_get_shares_within_a_step(num_jobs: int, sync_s: float) -> None:
    twins = [job(str(i), model=linear_model(sync_s=sync_s)) for i in range(num_jobs)]
    counts = sizes(decide(problem(nodes(1, 8), *twins))).values()
    assert max(counts) - min(counts) <= 1


@settings(max_examples=25, deadline=None, phases=QUICKLY)
@for_all(rngs, st.integers(1, 8))
def test_that_equal_new_jobs_with_falling_returns_get_shares_within_a_gpu(
    rng: random.Random, num_jobs: int
) -> None:
    model = random_model(rng)
    assert model.throughput is not None
    theta = dataclasses.replace(
        model.throughput, alpha_l=0.0, beta_l=0.01 * model.throughput.beta_l, gamma=1.0
    )
    limits = dataclasses.replace(model.limits, max_batch_size=10**4, max_atomic=None, accumulation=True)
    model = dataclasses.replace(model, throughput=theta, limits=limits, max_gpus_seen=8)
    one = problem(nodes(1, 8), *(job(str(i), model=model) for i in range(num_jobs)))
    candidates = build_candidates(one, list(one.jobs))
    value = {0: float(candidates.stay_worth[0])} | value_by_gpus(
        candidates.tables.num_gpus, candidates.value[0]
    )
    assume(corners(value) == list(range(9)))
    given = sizes(decide(one)).values()
    assert max(given) - min(given) <= 1


def value_by_gpus(num_gpus: np.ndarray, value: np.ndarray) -> dict[int, float]:
    return {int(k): float(v) for k, v in zip(num_gpus, value, strict=True) if v > -np.inf}


def corners(value: dict[int, float]) -> list[int]:
    """Return the counts at which the concave hull of value over GPUs bends."""
    found: list[int] = []
    for k in sorted(value):
        while len(found) > 1 and (value[found[-1]] - value[found[-2]]) * (k - found[-2]) <= (
            value[k] - value[found[-2]]
        ) * (found[-1] - found[-2]):
            found.pop()
        if not found or value[k] > value[found[-1]]:
            found.append(k)
    return found


@settings(max_examples=40, deadline=None, phases=QUICKLY)
@for_all(rngs, st.booleans())
def test_that_one_more_gpu_or_node_never_lowers_the_optimum(rng: random.Random, whole_node: bool) -> None:
    one = random_problem(rng, num_nodes=2, num_gpus=3, num_jobs=4)
    one = dataclasses.replace(one, objective=dataclasses.replace(one.objective, fair_share_gpus=1))
    first = one.nodes[0]
    if whole_node:
        grown = (*one.nodes, dataclasses.replace(first, name="new", accepts_new=True))
        jobs = tuple(dataclasses.replace(j, partition_nodes=None) for j in one.jobs)
    else:
        room = {"num_gpus": first.num_gpus + 1, "num_cpus": first.num_cpus + 3}
        grown = (dataclasses.replace(first, memory_mb=first.memory_mb + 1500, **room), *one.nodes[1:])
        jobs = one.jobs
    less, more = (decide(dataclasses.replace(one, nodes=nodes_, jobs=jobs)) for nodes_ in (one.nodes, grown))
    out = set(dict(less.excluded)) | set(dict(more.excluded))
    served = [sum(bool(d.allocation) for d in found.jobs) for found in (less, more)]
    assert served[0] <= served[1]
    if served[0] == served[1] and not out:
        assert more.fitness >= less.fitness * (1 - 1e-9)


@pytest.mark.parametrize("name", ["generalized-mean", "osdi21"])
@settings(max_examples=20, deadline=None, phases=QUICKLY)
@for_all(rngs, st.sampled_from([2.0**-8, 0.5, 4.0, 2.0**10]))
def test_that_the_time_unit_of_a_job_does_not_matter(name: str, rng: random.Random, factor: float) -> None:
    one = random_problem(rng, num_nodes=2, num_gpus=4, num_jobs=4)
    one = dataclasses.replace(one, objective=dataclasses.replace(one.objective, name=name))
    index = rng.randrange(len(one.jobs))
    slower = list(one.jobs)
    slower[index] = in_other_units(slower[index], factor)
    before, after = decide(one), decide(dataclasses.replace(one, jobs=tuple(slower)))
    assert after.fitness == pytest.approx(before.fitness, rel=1e-9)
    assert sizes(after) == sizes(before)


@settings(max_examples=15, deadline=None, phases=QUICKLY)
@for_all(rngs)
def test_that_a_narrower_limit_is_never_better(rng: random.Random) -> None:
    one = random_problem(rng, num_nodes=2, num_gpus=4, num_jobs=3)
    one = dataclasses.replace(one, jobs=tuple(dataclasses.replace(j, account="x") for j in one.jobs))

    def limited(most: int) -> tuple[int, float]:
        limit = GpuLimit(kind="account", name="x", max_gpus=most)
        found = decide(dataclasses.replace(one, limits=(limit,)))
        return sum(bool(d.allocation) for d in found.jobs), found.fitness

    wide, narrow = limited(8), limited(4)
    assert (wide[0], wide[1] * (1 + 1e-9)) >= narrow


def declared(of_a: float) -> Problem:
    """Return a problem of jobs that are alike but for their declared epochs, of which one is done."""
    epochs = [of_a, 10.0, 10.0, 10.0, 10.0, 1.2, 1.2, 1.2]
    jobs = [
        job(name, progress=1e6, epochs_done=1.0, epochs_declared=of_one, age_s=1e4)
        for name, of_one in zip("abcdefgh", epochs, strict=True)
    ]
    return dataclasses.replace(problem(nodes(4), *jobs), objective=Objective(name="price-rank"))


def test_that_a_job_that_declares_to_be_nearly_done_gains_but_not_everything() -> None:
    honest, lying = (sizes(decide(declared(epochs))) for epochs in (10.0, 1.000001))
    assert lying["a"] >= honest["a"]
    assert all(gpus >= 1 for gpus in lying.values())


def test_that_a_decision_has_the_factor_of_each_declaration() -> None:
    honest, lying, undeclared = (
        decide(declared(epochs)).jobs[0].declared_gain for epochs in (10.0, 1.000001, 0.0)
    )
    assert honest is not None
    assert lying is not None
    # Without a declaration it counts as longer than the last three, and shorter than the others.
    assert honest < 1.0 < lying <= MAX_WEIGHT_RATIO**2
    assert undeclared is None


def test_that_a_declaration_does_not_count_once_it_is_exceeded() -> None:
    exceeded = declared(1.0)  # one epoch done of one
    nothing = dataclasses.replace(exceeded.jobs[0], epochs_declared=None)
    without = dataclasses.replace(exceeded, jobs=(nothing, *exceeded.jobs[1:]))
    found, expected = decide(exceeded), decide(without)
    assert sizes(found) == sizes(expected)
    assert found.fitness == expected.fitness
    assert found.jobs[0].declared_gain is None


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("num_jobs", [3, 5, 7])
def test_that_other_objectives_give_equal_new_jobs_the_same_too(name: str, num_jobs: int) -> None:
    twins = [job(str(i), model=linear_model(seen=8), age_s=60.0) for i in range(num_jobs)]
    one = dataclasses.replace(problem(nodes(1, 8), *twins), objective=Objective(name=name))
    given = sizes(decide(one)).values()
    # Both use 1, 2, 4 and 8 GPUs of a node of 8: the next of these, at most.
    assert max(given) <= (min(given) + 1 if name == "osdi21" else 2 * min(given))


def test_that_osdi21_lets_a_new_job_wait_but_not_one_that_has_waited() -> None:
    # As in the artifact: f = T/(T + δ) is 0 for a job that has just arrived, whatever it gets.
    for age_s, served in ((0.0, False), (3600.0, True)):
        one = problem(nodes(1), job("a", {"n0": 4}), job("b", age_s=age_s))
        one = dataclasses.replace(one, objective=Objective(name="osdi21"))
        assert bool(sizes(decide(one))["b"]) is served


def test_that_a_slower_job_has_less_weight_for_the_same_progress_where_work_counts() -> None:
    # The same progress by a job that is half as fast was twice the work, so it weighs less.
    for name in OTHERS:
        weights = []
        for factor in (1.0, 2.0):
            one = in_other_units(job("a", progress=1e7, age_s=1e4), factor)
            two = dataclasses.replace(
                problem(nodes(1), one, job("b", progress=1e7)), objective=Objective(name=name)
            )
            weights.append(build_candidates(two, list(two.jobs)).scores.weight[0])
        assert weights[0] > weights[1]
