"""What a state knows of its nodes as jobs are taken out and put back."""

from __future__ import annotations

import random

from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from pollux_slurm.model import ProblemJob
from pollux_slurm.policy.candidates.place_search import find_place
from pollux_slurm.policy.candidates.placed_state import State
from pollux_slurm.policy.decide import build_candidates
from pollux_slurm.policy.problem.node_sets import Cluster, members_of
from tests.policy.builders import job, nodes, problem
from tests.policy.problems import random_problem


def placed(num_nodes: int, *jobs: ProblemJob) -> State:
    """Return the state in which these jobs have their current allocations."""
    small = problem(nodes(num_nodes), *jobs)
    candidates = build_candidates(small, list(small.jobs))
    return State(Cluster(candidates.tables.facts, small.jobs), candidates)


def test_that_a_node_that_two_wide_jobs_share_is_free_of_them_when_both_are_gone() -> None:
    state = placed(3, job("a", {"n0": 1, "n1": 1}), job("b", {"n1": 1, "n2": 1}))
    assert state.without_spanning() == 0b000
    first = state.take(0)
    assert state.without_spanning() == 0b001
    second = state.take(1)
    assert state.without_spanning() == 0b111
    state.put(1, second)
    other = state.copy()
    state.put(0, first)
    assert state.without_spanning() == 0b000
    state.take(1)
    assert state.without_spanning() == 0b100
    assert other.without_spanning() == 0b001


@settings(max_examples=50, deadline=None)
@for_all(st.randoms(use_true_random=False), st.integers(1, 5))
def test_that_what_is_free_is_what_nobody_holds(rng: random.Random, num_jobs: int) -> None:
    small = random_problem(rng, num_nodes=3, num_gpus=4, num_jobs=num_jobs)
    candidates = build_candidates(small, list(small.jobs))
    state = State(Cluster(candidates.tables.facts, small.jobs), candidates)
    away: set[int] = set()
    for _ in range(20):
        index = rng.randrange(len(small.jobs))
        if index in away:
            candidate = candidates.candidate(index, rng.randrange(-1, len(candidates.tables.num_gpus)))
            found = find_place(state, index, candidate)
            if found is not None:
                state.put(index, found)
                away.remove(index)
        else:
            state.take(index)
            away.add(index)
        used = [0] * len(state.free)
        wide: set[int] = set()
        for one in filter(None, state.placed):
            for node, gpus in one.gpus:
                used[node] += gpus
                wide.update([node] if len(one.gpus) > 1 else [])
        free = (state.cluster.capacity[:, 0] - used).tolist()
        assert state.free == free
        assert state.idle_gpus == sum(free)
        every = (1 << len(free)) - 1
        assert state.num_with(every) == [
            sum(f >= k for f in free) for k in range(state.cluster.max_gpus_per_node + 2)
        ]
        assert set(members_of(state.without_spanning())) == set(range(len(free))) - wide
