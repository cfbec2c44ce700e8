"""Large neighbourhood search by itself, in problems that need it."""

from __future__ import annotations

import random

import numpy as np

from pollux_slurm.model import NodeCapacity, ProblemJob
from pollux_slurm.policy.candidates.placed_state import State
from pollux_slurm.policy.decide import build_candidates
from pollux_slurm.policy.pricing.candidate_pruning import PrunedCandidates
from pollux_slurm.policy.pricing.dual_bound import solve_dual
from pollux_slurm.policy.pricing.relaxation import Relaxation
from pollux_slurm.policy.problem.node_sets import Cluster
from pollux_slurm.policy.search.neighbourhood import improve_parts
from tests.policy.builders import job, linear_model, nodes, problem


def improved(
    cluster: tuple[NodeCapacity, ...], *jobs: ProblemJob, max_parts: int = 100, enough: float = np.inf
) -> dict[str, str]:
    """Return the allocations that neighbourhood search finds from the current ones."""
    small = problem(cluster, *jobs)
    candidates = build_candidates(small, list(small.jobs))
    places = Cluster(candidates.tables.facts, small.jobs)
    state = State(places, candidates)
    relaxation = Relaxation(candidates, places)
    pruned = PrunedCandidates(candidates, relaxation, solve_dual(candidates, relaxation))
    stopped = improve_parts(
        state,
        pruned,
        max_parts=max_parts,
        tree_nodes=100,
        enough=enough,
        rng=random.Random(0),
        stop=lambda: False,
    )
    assert not stopped
    return {
        one.job_id: str(places.allocation_of(placed.gpus))
        for one, placed in zip(small.jobs, state.placed, strict=True)
        if placed is not None
    }


ON_ONE_NODE = linear_model(network_s=1e3)


def test_that_a_job_takes_the_best_place_that_is_free() -> None:
    assert improved(nodes(2), job("a", {"n0": 1}, model=ON_ONE_NODE)) == {"a": "n0:4"}


def test_that_two_jobs_are_moved_aside_for_one_that_needs_a_node() -> None:
    # Each node has two GPUs in use, each by a job of one GPU; six of eight would do for all.
    small = [
        job(name, {node: 1}, max_gpus=1) for name, node in zip("abcd", ("n0", "n0", "n1", "n1"), strict=True)
    ]
    found = improved(nodes(2), *small, job("wide", min_gpus=4, max_gpus=4, model=ON_ONE_NODE))
    assert found["wide"] in ("n0:4", "n1:4")
    assert len({found[name] for name in "abcd"}) == 1


def test_that_a_rich_job_gives_way_to_a_poor_one() -> None:
    found = improved(nodes(1), job("rich", {"n0": 3}), job("poor", {"n0": 1}))
    assert found == {"rich": "n0:2", "poor": "n0:2"}


def test_that_without_parts_nobody_is_displaced() -> None:
    found = improved(nodes(1), job("rich", {"n0": 3}), job("poor", {"n0": 1}), max_parts=0)
    assert found == {"rich": "n0:3", "poor": "n0:1"}


def test_that_an_answer_good_enough_is_left_as_it_is() -> None:
    found = improved(nodes(1), job("rich", {"n0": 3}), job("poor", {"n0": 1}), enough=-1e9)
    assert found == {"rich": "n0:3", "poor": "n0:1"}
