"""Decisions: small problems by hand, random ones against exhaustive search, large ones against the rules."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from hypothesis import Phase, settings
from hypothesis import given as for_all
from hypothesis import strategies as st

from pollux_slurm.model import Allocation, Objective, Problem
from pollux_slurm.policy import allocate, decide
from tests.policy import rules
from tests.policy.builders import given, job, linear_model, node, nodes, problem, sizes
from tests.policy.problems import random_problem, with_everything

# --------------------------------------------------------------------------------------- who gets how much


def test_that_equal_jobs_share_equally() -> None:
    assert sizes(decide(problem(nodes(4), *(job(str(i)) for i in range(16))))) == {
        str(i): 1 for i in range(16)
    }


def test_that_one_job_gets_the_whole_cluster_when_it_pays() -> None:
    assert sizes(decide(problem(nodes(4), job("a")))) == {"a": 16}


def test_that_a_job_which_does_not_scale_leaves_the_gpus_to_others() -> None:
    slow = job("slow", model=linear_model(sync_s=100.0))
    assert sizes(decide(problem(nodes(1), slow, job("fast")))) == {"slow": 1, "fast": 3}


def test_that_a_network_too_slow_keeps_a_job_on_one_node() -> None:
    remote = job("a", model=linear_model(network_s=100.0))
    assert given(decide(problem(nodes(2), remote))) == {"a": "n0:4"}


def test_that_a_new_job_gets_one_gpu_to_be_measured_on() -> None:
    assert sizes(decide(problem(nodes(1), job("new", model=None)))) == {"new": 1}
    assert sizes(decide(problem(nodes(1), job("new", model=None, min_gpus=3)))) == {"new": 3}


@pytest.mark.parametrize(("seen", "expected"), [(1, 4), (2, 8), (3, 12), (4, 16)])
def test_that_a_job_gets_at_most_four_times_what_it_was_measured_on(seen: int, expected: int) -> None:
    one = problem(nodes(1, 16), job("a", model=linear_model(seen=seen)))
    assert sizes(decide(one)) == {"a": expected}
    # The paper's artifact doubles.
    published = dataclasses.replace(one, objective=Objective(name="osdi21"))
    assert sizes(decide(published)) == {"a": expected // 2}


def test_that_a_job_stays_within_its_own_bounds() -> None:
    jobs = (job("small", max_gpus=1), job("large", min_gpus=5))
    assert sizes(decide(problem(nodes(1, 8), *jobs))) == {"small": 1, "large": 7}


@pytest.mark.parametrize("objective", ["generalized-mean", "osdi21", "price-rank", "attained-work"])
def test_that_allocate_returns_the_allocations_of_decide(objective: str) -> None:
    # `allocate` computes no speedup beyond the exploration caps.
    rng = random.Random(5)
    for _ in range(5):
        asked = with_everything(rng, random_problem(rng, num_nodes=3, num_gpus=4, num_jobs=rng.randint(1, 6)))
        asked = dataclasses.replace(asked, objective=dataclasses.replace(asked.objective, name=objective))
        decision, brief = decide(asked), allocate(asked)
        assert list(brief.allocations.items()) == [(one.job_id, one.allocation) for one in decision.jobs]
        assert brief.excluded == dict(decision.excluded)


def test_that_allocate_leaves_an_excluded_job_its_allocation() -> None:
    jobs = (job("bad", {"n0": 2}, weight=-1.0), job("good"))
    found = allocate(problem(nodes(1), *jobs))
    assert {name: allocation.num_gpus for name, allocation in found.allocations.items()} == {
        "bad": 2,
        "good": 2,
    }
    assert list(found.excluded) == ["bad"]


def test_that_jobs_wait_when_there_is_no_room_and_the_most_are_served() -> None:
    jobs = (job("large", min_gpus=4), job("one", min_gpus=2), job("two", min_gpus=2))
    assert sizes(decide(problem(nodes(1), *jobs))) == {"large": 0, "one": 2, "two": 2}


def test_that_a_running_job_is_never_stopped_for_waiting_ones() -> None:
    jobs = (job("old", {"n0": 4}, min_gpus=4), *(job(str(i)) for i in range(4)))
    assert sizes(decide(problem(nodes(1), *jobs))) == {"old": 4, "0": 0, "1": 0, "2": 0, "3": 0}


def test_that_a_running_job_shrinks_for_a_waiting_one() -> None:
    found = decide(problem(nodes(1), job("old", {"n0": 4}), job("new", model=None)))
    assert sizes(found) == {"old": 3, "new": 1}


def test_that_a_job_so_young_that_moving_it_is_worth_nothing_still_makes_room_for_a_minimum() -> None:
    found = decide(problem(nodes(1), job("young", {"n0": 4}, age_s=0.0), job("new", model=None)))
    assert sizes(found) == {"young": 3, "new": 1}


# ------------------------------------------------------------------------------------------------ where


def test_that_jobs_with_all_gpus_that_they_can_use_stay_where_they_are() -> None:
    jobs = (job("a", {"n1": 4}), job("b", {"n0": 4}))
    assert given(decide(problem(nodes(2), *jobs))) == {"a": "n1:4", "b": "n0:4"}


def test_that_equals_are_not_exchanged() -> None:
    jobs = (job("a", {"n0": 1}, max_gpus=1), job("b", {"n2": 1}, max_gpus=1))
    assert given(decide(problem(nodes(4), *jobs))) == {"a": "n0:1", "b": "n2:1"}


def test_that_a_recent_job_is_not_moved_for_a_small_gain() -> None:
    # From 3 to 4 GPUs is a third more, but f = 300/(300 + 150) takes that third away.
    young = job("a", {"n0": 3}, age_s=60.0, restart_delay_s=150.0)
    assert sizes(decide(problem(nodes(1), young))) == {"a": 3}
    old = dataclasses.replace(young, age_s=3600.0)
    assert sizes(decide(problem(nodes(1), old))) == {"a": 4}


def test_that_a_job_is_moved_aside_when_only_that_makes_room_for_another() -> None:
    # Two GPUs are free on each node, and the newcomer needs four on one.
    jobs = (
        job("a", {"n0": 2}, max_gpus=2),
        job("b", {"n1": 2}, max_gpus=2),
        job("wide", min_gpus=4, max_gpus=4, model=linear_model(network_s=1e3)),
    )
    found = decide(problem(nodes(2), *jobs))
    assert sizes(found) == {"a": 2, "b": 2, "wide": 4}
    assert found.allocation("wide").num_nodes == 1


def test_that_no_two_jobs_over_several_nodes_share_one() -> None:
    jobs = (job("a", min_gpus=5, max_gpus=6), job("b", min_gpus=5, max_gpus=6))
    found = decide(problem(nodes(3), *jobs))
    wide = [found.allocation(name) for name in "ab" if found.allocation(name)]
    assert len(wide) == 1
    assert sizes(decide(problem(nodes(4), *jobs))) == {"a": 6, "b": 6}


def test_that_only_equal_shares_span_nodes() -> None:
    # Five GPUs would be four and one, which is not allowed. Four on one node is the best that is.
    assert sizes(decide(problem(nodes(2), job("a", max_gpus=5)))) == {"a": 4}
    assert given(decide(problem(nodes(2), job("a", max_gpus=6)))) == {"a": "n0:3+n1:3"}


def test_that_cpus_limit_the_gpus_of_a_node() -> None:
    cluster = (node("n0", 4, num_cpus=10),)
    assert sizes(decide(problem(cluster, job("a", cpus_per_gpu=4)))) == {"a": 2}


def test_that_memory_limits_the_gpus_of_a_node() -> None:
    assert sizes(decide(problem(nodes(1), job("a", memory_per_gpu_mb=300_000)))) == {"a": 3}


def test_that_a_drained_node_keeps_its_jobs_and_takes_no_new_ones() -> None:
    cluster = (node("n0"), node("n1", accepts_new=False))
    waiting = (job("b", model=None, min_gpus=3), job("c", model=None), job("d", model=None, min_gpus=2))
    found = decide(problem(cluster, job("a", {"n1": 2}, max_gpus=2), *waiting))
    assert given(found) == {"a": "n1:2", "b": "n0:3", "c": "n0:1", "d": "none"}


def test_that_a_job_stays_within_its_partition() -> None:
    found = decide(problem(nodes(3), job("a", partition_nodes=frozenset({"n1"}))))
    assert given(found) == {"a": "n1:4"}


def test_that_a_pinned_job_keeps_its_allocation_whatever_its_value() -> None:
    pinned = job("a", {"n0": 1, "n1": 3}, pinned=True, max_gpus=2)
    assert given(decide(problem(nodes(2), pinned, job("b")))) == {"a": "n0:1+n1:3", "b": "n0:3"}


def test_that_a_job_above_its_maximum_shrinks_to_it() -> None:
    assert sizes(decide(problem(nodes(1), job("a", {"n0": 4}, max_gpus=2)))) == {"a": 2}


def test_that_an_overcommitted_node_takes_no_new_jobs() -> None:
    cluster = (node("n0", 2), node("n1", 4))
    jobs = (job("a", {"n0": 3}, max_gpus=3, age_s=0.0), job("b", model=None), job("c", model=None))
    assert given(decide(problem(cluster, *jobs))) == {"a": "n0:3", "b": "n1:1", "c": "n1:1"}


def test_that_gpus_beyond_an_overcommitted_nodes_size_are_not_given_to_the_next_job() -> None:
    # Were n0 open, "a" would take all of n1, and "b" one of the three GPUs of a node that has two.
    cluster = (node("n0", 2), node("n1", 4))
    found = decide(problem(cluster, job("a", {"n0": 3}), job("b", model=None)))
    assert given(found) == {"a": "n0:3", "b": "n1:1"}


# ------------------------------------------------------------------------------------- odd and contradictory


def test_that_an_empty_cluster_gives_nothing_to_anybody() -> None:
    assert given(decide(problem((), job("a")))) == {"a": "none"}
    assert given(decide(problem((node("n0", 0),), job("a", model=None)))) == {"a": "none"}


def test_that_no_jobs_need_no_decision() -> None:
    assert decide(problem(nodes(2))).jobs == ()


def test_that_a_job_that_fits_nowhere_is_excluded_with_a_reason() -> None:
    batch_of_two = dataclasses.replace(
        linear_model(), limits=dataclasses.replace(linear_model().limits, initial_batch_size=2)
    )
    found = decide(problem(nodes(1), job("a", model=batch_of_two, min_gpus=3), job("b")))
    reason = "no configuration that adaptive jobs may use now fits its minimum of GPUs and its batch"
    assert dict(found.excluded) == {"a": reason}
    assert sizes(found) == {"a": 0, "b": 4}


def test_that_the_unit_of_time_of_a_job_does_not_matter() -> None:
    def timed(unit: float) -> Problem:
        theta = linear_model(sync_s=0.5 * unit).throughput
        assert theta is not None
        slower = dataclasses.replace(theta, beta_g=theta.beta_g * unit)
        model = dataclasses.replace(linear_model(), throughput=slower)
        return problem(nodes(2), job("a", model=model), job("b", model=linear_model(sync_s=1.0)))

    assert given(decide(timed(1.0))) == given(decide(timed(1000.0)))


# --------------------------------------------------------------------------------- random problems

rngs = st.randoms(use_true_random=False)
# A failing problem is not made smaller: that can take minutes.
QUICKLY = (Phase.explicit, Phase.reuse, Phase.generate)


@settings(max_examples=60, deadline=None)
@for_all(rngs, st.integers(1, 3))
def test_that_small_problems_are_solved_as_well_as_by_trying_everything(
    rng: random.Random, num_jobs: int
) -> None:
    small = random_problem(rng, num_nodes=2, num_gpus=4, num_jobs=num_jobs)
    found = decide(small)
    left_out = [job_id for job_id, _ in found.excluded]
    waiting, fitness = rules.best(small, left_out)
    assert sum(not decision.allocation for decision in found.jobs) == waiting
    assert found.fitness == pytest.approx(fitness, rel=1e-6)


@settings(max_examples=40, deadline=None, phases=QUICKLY)
@for_all(rngs, st.integers(1, 3))
def test_that_types_limits_weights_and_moves_are_solved_as_well(rng: random.Random, num_jobs: int) -> None:
    small = with_everything(rng, random_problem(rng, num_nodes=2, num_gpus=4, num_jobs=num_jobs))
    found = decide(small)
    assert rules.violations(small, {d.job_id: d.allocation for d in found.jobs}) == []
    left_out = [job_id for job_id, _ in found.excluded]
    waiting, fitness = rules.best(small, left_out)
    assert sum(not decision.allocation for decision in found.jobs) == waiting
    assert found.fitness == pytest.approx(fitness, rel=1e-6)


@settings(max_examples=20, deadline=None, phases=QUICKLY)
@for_all(rngs, st.integers(1, 6), st.integers(1, 15))
def test_that_every_answer_with_types_and_limits_keeps_the_rules(
    rng: random.Random, num_nodes: int, num_jobs: int
) -> None:
    large = with_everything(rng, random_problem(rng, num_nodes=num_nodes, num_gpus=4, num_jobs=num_jobs))
    found = decide(large)
    assert rules.violations(large, {d.job_id: d.allocation for d in found.jobs}) == []
    assert found.upper_bound is None or found.fitness <= found.upper_bound


@settings(max_examples=40, deadline=None)
@for_all(rngs)
def test_that_three_nodes_are_solved_as_well_as_by_trying_everything(rng: random.Random) -> None:
    small = random_problem(rng, num_nodes=3, num_gpus=4, num_jobs=2)
    found = decide(small)
    waiting, fitness = rules.best(small, [job_id for job_id, _ in found.excluded])
    assert sum(not decision.allocation for decision in found.jobs) == waiting
    assert found.fitness == pytest.approx(fitness, rel=1e-6)


@settings(max_examples=30, deadline=None)
@for_all(rngs, st.integers(1, 8), st.integers(1, 8), st.integers(1, 20))
def test_that_every_answer_keeps_the_rules(
    rng: random.Random, num_nodes: int, num_gpus: int, num_jobs: int
) -> None:
    large = random_problem(rng, num_nodes=num_nodes, num_gpus=num_gpus, num_jobs=num_jobs)
    found = decide(large)
    assert [decision.job_id for decision in found.jobs] == [wanted.job_id for wanted in large.jobs]
    assert rules.violations(large, {d.job_id: d.allocation for d in found.jobs}) == []
    for wanted, decision in zip(large.jobs, found.jobs, strict=True):
        assert decision.speedup == pytest.approx(rules.speedup(large, wanted, decision.allocation))
        if decision.job_id not in dict(found.excluded):
            assert decision.penalty == pytest.approx(rules.penalty(large, wanted, decision.allocation))


@settings(max_examples=20, deadline=None)
@for_all(rngs)
def test_that_no_change_is_never_better_and_the_same_problem_has_one_answer(rng: random.Random) -> None:
    large = random_problem(rng, num_nodes=4, num_gpus=4, num_jobs=8)
    found = decide(large)
    assert decide(large) == found
    taking_part = [j for j in large.jobs if j.job_id not in dict(found.excluded)]
    waiting = sum(not j.current for j in taking_part)
    if taking_part and sum(not found.allocation(j.job_id) for j in taking_part) == waiting:
        kept = rules.mean(large, [rules.worth(large, j, j.current) for j in taking_part])
        assert found.fitness >= kept * (1 - 1e-9)


@settings(max_examples=20, deadline=None)
@for_all(rngs)
def test_that_deciding_again_after_the_change_changes_nothing_more(rng: random.Random) -> None:
    before = random_problem(rng, num_nodes=2, num_gpus=4, num_jobs=3)
    found = decide(before)
    # A move takes so long that it has no value, and no job waits that could be served.
    settled = dataclasses.replace(
        before,
        jobs=tuple(
            dataclasses.replace(
                j,
                current=found.allocation(j.job_id),
                age_s=0.0,
                restart_delay_s=1e6,
                min_gpus=min(j.min_gpus, found.allocation(j.job_id).num_gpus or j.min_gpus),
                max_gpus=None,
            )
            for j in before.jobs
            if found.allocation(j.job_id)
        ),
    )
    again = decide(settled)
    for j in settled.jobs:
        if rules.worth(settled, j, j.current) > 0:
            assert again.allocation(j.job_id) == j.current


def test_that_the_fitness_is_the_mean_over_the_jobs_that_take_part() -> None:
    found = decide(problem(nodes(1), job("a", max_gpus=1), job("b", max_gpus=1), job("bad", age_s=math.nan)))
    # One GPU each is both jobs' fair share: (2 / (1/1.001 + 1/1.001)).
    assert found.fitness == pytest.approx(1.001)
    assert found.allocation("bad") == Allocation()
