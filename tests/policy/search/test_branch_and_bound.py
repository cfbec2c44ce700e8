"""Branch and bound by itself, from the current allocations and not from a good solution."""

from __future__ import annotations

import random

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from pollux_slurm.model import ProblemJob
from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.placed_state import State
from pollux_slurm.policy.decide import build_candidates
from pollux_slurm.policy.pricing.candidate_pruning import PrunedCandidates
from pollux_slurm.policy.pricing.dual_bound import solve_dual
from pollux_slurm.policy.pricing.relaxation import Relaxation
from pollux_slurm.policy.problem.node_sets import Cluster
from pollux_slurm.policy.search.branch_and_bound import BranchAndBound
from tests.policy import rules
from tests.policy.builders import job, linear_model, nodes, problem
from tests.policy.problems import random_problem


def branch(state: State, candidates: Candidates, *, max_nodes: int) -> BranchAndBound:
    """Return the search over all jobs of a candidates that may move."""
    relaxation = Relaxation(candidates, state.cluster)
    pruned = PrunedCandidates(candidates, relaxation, solve_dual(candidates, relaxation))
    movable = [job for job in range(candidates.num_jobs) if pruned.is_movable(job)]
    return BranchAndBound(state, pruned, movable, slack=pruned.slack(state), max_nodes=max_nodes)


@settings(max_examples=40, deadline=None)
@for_all(st.randoms(use_true_random=False), st.integers(1, 3))
def test_that_it_finds_and_proves_the_best_answer(rng: random.Random, num_jobs: int) -> None:
    small = random_problem(rng, num_nodes=2, num_gpus=4, num_jobs=num_jobs)
    candidates = build_candidates(small, list(small.jobs))
    cluster = Cluster(candidates.tables.facts, small.jobs)
    state = State(cluster, candidates)

    assert branch(state, candidates, max_nodes=10**6).run()

    found = [placed for placed in state.placed if placed is not None]
    answer = {
        one.job_id: cluster.allocation_of(placed.gpus) for one, placed in zip(small.jobs, found, strict=True)
    }
    assert rules.violations(small, answer) == []
    waiting, best = rules.best(small)
    assert sum(not allocation for allocation in answer.values()) == waiting
    worths = [placed.candidate.penalty * placed.candidate.speedup for placed in found]
    assert candidates.scores.fitness(worths) == pytest.approx(best, rel=1e-6)


def test_that_too_few_steps_prove_nothing_and_leave_a_whole_state() -> None:
    small = random_problem(random.Random(3), num_nodes=3, num_gpus=4, num_jobs=4)
    candidates = build_candidates(small, list(small.jobs))
    state = State(Cluster(candidates.tables.facts, small.jobs), candidates)
    before = list(state.placed)
    assert not branch(state, candidates, max_nodes=1).run()
    assert state.placed == before


def solved(*jobs: ProblemJob) -> dict[str, str]:
    """Return the allocations that branch and bound finds from the current ones on two nodes of four GPUs."""
    small = problem(nodes(2), *jobs)
    candidates = build_candidates(small, list(small.jobs))
    cluster = Cluster(candidates.tables.facts, small.jobs)
    state = State(cluster, candidates)
    assert branch(state, candidates, max_nodes=10**6).run()
    return {
        one.job_id: str(cluster.allocation_of(placed.gpus))
        for one, placed in zip(small.jobs, state.placed, strict=True)
        if placed is not None
    }


def test_that_nodes_with_unequal_room_are_told_apart() -> None:
    # "a" has the most at stake and is decided first: only n1, which has two GPUs left, leaves "b" a node.
    pinned = job("p", {"n1": 2}, pinned=True)
    waiting = [job(str(i), pinned=True) for i in range(5)]
    small, wide = job("a", max_gpus=2), job("b", model=linear_model(sync_s=2.1, network_s=1e3))
    found = solved(pinned, small, wide, *waiting)
    assert (found["a"], found["b"]) == ("n1:2", "n0:4")


def test_that_nodes_of_which_an_undecided_job_holds_unequal_parts_are_told_apart() -> None:
    # "a" is decided first; "b" owns two GPUs of n0 and can stay only if "a" takes n1, of which it owns one.
    held = job("b", {"n0": 2, "n1": 1}, age_s=0.0, restart_delay_s=1e6)
    found = solved(job("a", max_gpus=3, model=linear_model(network_s=1e3)), held)
    assert found == {"a": "n1:3", "b": "n0:2+n1:1"}


def test_that_the_node_where_an_undecided_job_is_at_home_is_told_apart() -> None:
    other = job("b", {"n0": 1}, max_gpus=1, age_s=0.0, restart_delay_s=1e6)
    assert solved(job("a", model=linear_model(network_s=1e3)), other) == {"a": "n1:4", "b": "n0:1"}
