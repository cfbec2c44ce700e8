"""Moves priced by their way: in place where a wing is kept, by requeue elsewhere."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import Phase, settings
from hypothesis import given as for_all
from hypothesis import strategies as st

from pollux_slurm.model import Allocation, Decision, NodeCapacity, Objective, ProblemJob, ReallocationWay
from pollux_slurm.policy import OBJECTIVES, SOLVERS, decide, expected_move, explanation, fitness_of
from pollux_slurm.policy.candidates.place_search import find_place
from pollux_slurm.policy.candidates.placed_state import State
from pollux_slurm.policy.decide import build_candidates
from pollux_slurm.policy.problem.node_sets import Cluster
from tests.policy import rules
from tests.policy.builders import given, job, linear_model, node, nodes, problem, sizes
from tests.policy.problems import random_problem, with_everything, with_wings

IN_PLACE, REQUEUE = ReallocationWay.IN_PLACE, ReallocationWay.REQUEUE
rngs = st.randoms(use_true_random=False)
QUICKLY = (Phase.explicit, Phase.reuse, Phase.generate)


def winged(job_id: str, *wings: dict[str, int], **fields: object) -> ProblemJob:
    """Return a job that can move in place within a second, and loses by any restart."""
    total: dict[str, int] = {}
    for wing in wings:
        for name, gpus in wing.items():
            total[name] = total.get(name, 0) + gpus
    fields = {"age_s": 120.0, "num_restarts": 1, "restart_delay_s": 3e4, "in_place_delay_s": 1.0, **fields}
    return job(job_id, total, wings=tuple(map(Allocation.of, wings)), **fields)


def ways(found: Decision) -> dict[str, ReallocationWay | None]:
    return {one.job_id: one.way for one in found.jobs}


@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_that_a_move_in_place_pays_where_a_requeue_does_not(solver: str) -> None:
    cluster = nodes(2)
    by_requeue = dataclasses.replace(winged("a", {"n0": 4}), in_place_delay_s=None)
    assert given(decide(problem(cluster, by_requeue), solver=solver)) == {"a": "n0:4"}
    found = decide(problem(cluster, dataclasses.replace(by_requeue, in_place_delay_s=900.0)), solver=solver)
    assert given(found) == {"a": "n0:4"}, "300 of 750 s are left of twice the speed"
    quick = winged("a", {"n0": 4}, num_restarts=0)
    found = decide(problem(cluster, quick), solver=solver)
    assert given(found) == {"a": "n0:4+n1:4"}
    assert ways(found) == {"a": IN_PLACE}
    assert found.jobs[0].penalty == pytest.approx(300 / 300.5)
    assert found.jobs[0].move_delay_s == 1.0


@pytest.mark.parametrize("solver", ["search", "genetic"])
def test_that_among_equal_placements_the_one_that_keeps_a_wing_is_chosen(solver: str) -> None:
    """The job gives up two of three nodes to two that wait. Any one is as fast, and n1 is not its wing's."""
    mover = winged("a", {"n0": 1, "n1": 1}, {"n2": 1}, model=linear_model(network_s=1e3), num_restarts=0)
    others = [job(name, model=None, min_gpus=1) for name in "bc"]
    found = decide(problem(nodes(3, 1), mover, *others), solver=solver)
    assert sizes(found) == {"a": 1, "b": 1, "c": 1}
    assert given(found)["a"] == "n2:1"
    assert ways(found) == {"a": IN_PLACE, "b": None, "c": None}


def test_that_a_shrink_to_the_maximum_in_place_costs_no_training() -> None:
    large = winged("a", {"n0": 2}, {"n1": 2}, max_gpus=2, in_place_delay_s=60.0)
    found = decide(problem(nodes(2), large))
    assert ways(found) == {"a": IN_PLACE}
    assert found.jobs[0].penalty == 1.0, "it trains on as fast as before until it moves"


def test_that_of_equal_places_the_one_with_more_wings_is_kept() -> None:
    """The job leaves one of its two nodes to one that waits, and can later leave half of the other."""
    grown = winged("a", {"n1": 4}, {"n0": 2}, {"n0": 2}, num_restarts=0)
    cluster = tuple(dataclasses.replace(one, several_wings=True) for one in nodes(2))
    found = decide(problem(cluster, grown, job("b", min_gpus=4, model=None)))
    assert given(found) == {"a": "n0:4", "b": "n1:4"}
    assert ways(found)["a"] == IN_PLACE


def test_that_a_place_keeps_wings_though_other_nodes_are_fuller() -> None:
    grown = winged("a", {"n3": 2}, {"n4": 2}, num_restarts=0)
    half_full = [job(str(index), {f"n{index}": 2}, pinned=True) for index in (0, 1, 2)]
    small = problem(nodes(6), grown, *half_full)
    candidates = build_candidates(small, list(small.jobs))
    state = State(Cluster(candidates.tables.facts, small.jobs), candidates)
    state.take(0)
    shapes = zip(candidates.tables.num_nodes.tolist(), candidates.tables.per_node.tolist(), strict=True)
    columns = {shape: column for column, shape in enumerate(shapes)}

    def placed(num_nodes: int, per_node: int) -> tuple[str, bool]:
        found = find_place(state, 0, candidates.candidate(0, columns[num_nodes, per_node]))
        assert found is not None
        return str(state.cluster.allocation_of(found.gpus)), found.candidate.in_place

    assert placed(1, 2) == ("n3:2", True)
    assert placed(3, 2) == ("n0:2+n3:2+n4:2", True)
    assert placed(1, 4) == ("n3:4", False), "no wing has four GPUs"
    assert placed(2, 1) == ("n0:1+n1:1", False)


@pytest.mark.parametrize(
    ("wings", "target", "several", "expected"),
    [
        ([{"n0": 4}], {"n0": 4, "n1": 4}, False, True),
        ([{"n0": 2}], {"n0": 4}, False, False),
        ([{"n0": 2}], {"n0": 4}, True, True),
        ([{"n0": 4, "n1": 4}], {"n0": 4}, False, False),
        # n0 has four GPUs free, n1 none: there the new wing would wait for the old one, and that for it.
        ([{"n0": 4, "n2": 2}, {"n3": 4}], {"n0": 4, "n3": 4}, False, True),
        ([{"n1": 4, "n2": 2}, {"n3": 4}], {"n1": 4, "n3": 4}, False, False),
    ],
)
def test_that_a_move_is_in_place_where_it_keeps_a_wing_and_new_ones_have_room(
    wings: list[dict[str, int]], target: dict[str, int], several: bool, expected: bool
) -> None:
    sizes = {"n0": 8, "n1": 4, "n2": 4, "n3": 4}
    cluster = tuple(
        NodeCapacity(name=name, num_gpus=gpus, num_cpus=64, memory_mb=10**6, several_wings=several)
        for name, gpus in sizes.items()
    )
    one = problem(cluster, winged("a", *wings))
    expected_way = (IN_PLACE, 1.0) if expected else (REQUEUE, one.jobs[0].restart_delay_s)
    assert expected_move(one, one.jobs[0], Allocation.of(target)) == expected_way
    assert rules.is_in_place(one, one.jobs[0], Allocation.of(target)) == expected


def test_that_no_change_no_start_and_no_pause_has_a_way() -> None:
    one = problem(nodes(2), winged("a", {"n0": 4}), job("b"))
    assert expected_move(one, one.jobs[0], one.jobs[0].current) is None
    assert expected_move(one, one.jobs[0], Allocation()) is None
    assert expected_move(one, one.jobs[1], Allocation.of({"n1": 1})) is None


def test_that_the_explanation_names_the_way_and_its_cost() -> None:
    in_place = winged("a", {"n0": 4}, num_restarts=0, in_place_delay_s=8.2)
    (found,) = decide(problem(nodes(2), in_place)).jobs
    assert "moves in place, about 8 s until it trains there" in explanation(found)
    requeued = job("a", {"n0": 4}, restart_delay_s=30.0)
    (found,) = decide(problem(nodes(2), requeued)).jobs
    assert "moves by requeue, about 30 s standing still" in explanation(found)
    (found,) = decide(problem(nodes(1), requeued)).jobs
    assert "moves" not in explanation(found)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_that_every_objective_prices_a_move_by_its_way(name: str) -> None:
    """Two nodes become free beside a job of one: by requeue it loses more than they bring."""
    work = {"progress": 1e5, "num_restarts": 0, "age_s": 150.0, "restart_delay_s": 600.0}
    mover = winged("a", {"n0": 4}, **work)
    cluster = nodes(2)
    one = dataclasses.replace(problem(cluster, mover), objective=Objective(name=name))
    found = decide(one)
    assert ways(found) == {"a": IN_PLACE}
    assert found.fitness == pytest.approx(fitness_of(one, {"a": found.allocation("a")}))
    waits = dataclasses.replace(one, jobs=(dataclasses.replace(mover, in_place_delay_s=None),))
    dearer = fitness_of(waits, {"a": found.allocation("a")})
    assert dearer < found.fitness
    if name != "osdi21":  # whose delay of a restart is 30 s, whatever it takes
        assert given(decide(waits)) == {"a": "n0:4"}


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
@pytest.mark.parametrize("solver", ["search", "greedy"])
def test_that_jobs_without_wings_are_decided_about_as_ever(solver: str, name: str) -> None:
    rng = random.Random(7)
    one = with_everything(rng, random_problem(rng, num_nodes=5, num_gpus=4, num_jobs=9))
    one = dataclasses.replace(one, objective=dataclasses.replace(one.objective, name=name))
    other = dataclasses.replace(
        one,
        nodes=tuple(dataclasses.replace(each, several_wings=True) for each in one.nodes),
        jobs=tuple(dataclasses.replace(each, in_place_delay_s=1.0) for each in one.jobs),
    )
    assert decide(one, solver=solver, effort=0.1) == decide(other, solver=solver, effort=0.1)


@settings(max_examples=40, deadline=None, phases=QUICKLY)
@for_all(rngs, st.integers(1, 3), st.sampled_from([("search", 1.0), ("search", 0.02), ("greedy", 1.0)]))
def test_that_the_bound_is_one_with_wings_and_a_small_problem_is_solved(
    rng: random.Random, num_jobs: int, how: tuple[str, float]
) -> None:
    small = random_problem(rng, num_nodes=3, num_gpus=2 if num_jobs > 2 else 3, num_jobs=num_jobs)
    small = with_wings(rng, with_everything(rng, small) if rng.random() < 0.4 else small)
    found = decide(small, solver=how[0], effort=how[1])
    answer = {one.job_id: one.allocation for one in found.jobs}
    assert rules.violations(small, answer) == []
    for one, decided in zip(small.jobs, found.jobs, strict=True):
        if decided.way is not None:
            assert (decided.way is IN_PLACE) == rules.is_in_place(small, one, decided.allocation)
    waiting, best = rules.best(small, [job_id for job_id, _ in found.excluded])
    if found.upper_bound is not None and waiting == sum(not one.allocation for one in found.jobs):
        assert found.fitness <= best * (1 + 1e-9)
        assert found.upper_bound >= best * (1 - 1e-9)
        if how == ("search", 1.0):
            assert found.fitness == pytest.approx(best, rel=1e-6)


@settings(max_examples=20, deadline=None, phases=QUICKLY)
@for_all(rngs, st.integers(2, 12), st.sampled_from(sorted(SOLVERS)), st.sampled_from(sorted(OBJECTIVES)))
def test_that_every_solver_keeps_the_rules_and_the_bound_with_wings(
    rng: random.Random, num_jobs: int, solver: str, name: str
) -> None:
    one = with_wings(rng, random_problem(rng, num_nodes=4, num_gpus=4, num_jobs=num_jobs))
    one = dataclasses.replace(one, objective=dataclasses.replace(one.objective, name=name), uneven=False)
    found = decide(one, solver=solver, effort=0.1)
    answer = {each.job_id: each.allocation for each in found.jobs}
    assert rules.violations(one, answer) == []
    assert decide(one, solver=solver, effort=0.1) == found
    if not found.excluded and found.upper_bound is not None:
        assert found.fitness <= found.upper_bound
        assert fitness_of(one, answer) == pytest.approx(found.fitness)


def test_that_unequal_shares_keep_wings_beside_others() -> None:
    """Of five GPUs, three stay as one wing; two more are on the other node."""
    mover = winged("a", {"n0": 3}, num_restarts=0, max_gpus=5, model=linear_model(seen=8))
    one = dataclasses.replace(problem((node("n0", 3), node("n1", 4)), mover), uneven=True)
    found = decide(one)
    assert given(found) == {"a": "n0:3+n1:2"}
    assert ways(found) == {"a": IN_PLACE}
