"""What must not happen under `generalized-mean`, and the guards of the other objectives."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import Phase, settings
from hypothesis import given as for_all
from hypothesis import strategies as st

from pollux_slurm.model import GpuLimit, Objective, Problem
from pollux_slurm.policy import decide
from pollux_slurm.policy.scores import MAX_DECLARED_WEIGHT
from tests.policy.builders import job, linear_model, nodes, problem, sizes
from tests.policy.problems import random_model, random_problem

rngs = st.randoms(use_true_random=False)
QUICKLY = (Phase.explicit, Phase.reuse, Phase.generate)
OTHERS = ["price-rank", "attained-work"]


def new_job(rng: random.Random, name: str) -> dict:
    # A batch that one GPU can take, so that all minimums fit.
    return {"job_id": name, "model": linear_model(sync_s=rng.uniform(0, 5), network_s=rng.uniform(0, 5))}


@settings(max_examples=15, deadline=None, phases=QUICKLY)
@for_all(rngs, st.integers(1, 12))
def test_that_all_are_served_when_all_minimums_fit(rng: random.Random, num_jobs: int) -> None:
    found = decide(problem(nodes(3), *(job(**new_job(rng, str(i))) for i in range(num_jobs))))
    assert not found.excluded
    assert all(d.allocation for d in found.jobs)


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


@settings(max_examples=10, deadline=None, phases=QUICKLY)
@for_all(rngs)
def test_that_one_more_gpu_for_a_capped_set_of_jobs_is_never_worse(rng: random.Random) -> None:
    # The fair share is held at one GPU by max_gpus, so the normaliser stays the same.
    jobs = [job(str(i), max_gpus=1, model=random_model(rng)) for i in range(3)]
    less, more = (decide(problem(nodes(1, count), *jobs)) for count in (2, 3))
    served = [sum(bool(d.allocation) for d in found.jobs) for found in (less, more)]
    assert served[0] <= served[1]
    if served[0] == served[1]:
        assert more.fitness >= less.fitness * (1 - 1e-9)


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
    jobs = [
        job("a", progress=1e6, epochs_done=1.0, epochs_declared=of_a, age_s=1e4),
        *(job(str(i), progress=1e6, epochs_done=1.0, epochs_declared=10.0, age_s=1e4) for i in range(7)),
    ]
    return dataclasses.replace(problem(nodes(4), *jobs), objective=Objective(name="price-rank"))


def test_that_who_declares_to_be_nearly_done_gains_but_not_everything() -> None:
    honest, lying = (sizes(decide(declared(epochs))) for epochs in (10.0, 1.000001))
    assert lying["a"] >= honest["a"]
    assert all(gpus >= 1 for gpus in lying.values())


def test_that_who_gained_by_declaring_is_told_and_by_how_much() -> None:
    honest, lying, silent = (
        decide(declared(epochs)).jobs[0].declared_gain for epochs in (10.0, 1.000001, 0.0)
    )
    assert honest is not None
    assert lying is not None
    # All eight say the same; the one that claims to be nearly done weighs more than if it had said nothing.
    assert honest < 1.0 < lying <= MAX_DECLARED_WEIGHT**2
    assert silent is None


def test_that_a_job_that_goes_on_after_what_it_declared_has_declared_nothing() -> None:
    passed = declared(1.0)  # one epoch done of one
    nothing = dataclasses.replace(passed.jobs[0], epochs_declared=None)
    silent = dataclasses.replace(passed, jobs=(nothing, *passed.jobs[1:]))
    found, expected = decide(passed), decide(silent)
    assert sizes(found) == sizes(expected)
    assert found.fitness == expected.fitness
    assert found.jobs[0].declared_gain is None
