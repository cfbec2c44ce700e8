"""Idle GPUs are given to all jobs that may have room for more, and only to these."""

from __future__ import annotations

import random

import numpy as np

from pollux_slurm.policy.candidates.placed_state import State
from pollux_slurm.policy.decide import build_candidates
from pollux_slurm.policy.pricing.dual_bound import solve_dual
from pollux_slurm.policy.pricing.relaxation import Relaxation
from pollux_slurm.policy.problem.deterministic_rounding import above
from pollux_slurm.policy.problem.node_sets import Cluster
from pollux_slurm.policy.search.construction import Constructor
from tests.policy.builders import job, linear_model, nodes, problem
from tests.policy.problems import random_problem, with_everything


def test_that_every_job_with_room_to_gain_is_told_so() -> None:
    rng = random.Random(7)
    gained = spared = 0
    for _ in range(60):
        plain = random_problem(rng, num_nodes=rng.randint(1, 6), num_gpus=4, num_jobs=rng.randint(1, 8))
        small = with_everything(rng, plain)
        candidates = build_candidates(small, list(small.jobs))
        cluster = Cluster(candidates.tables.facts, small.jobs)
        state, relaxation = State(cluster, candidates), Relaxation(candidates, cluster)
        prices = solve_dual(candidates, relaxation).prices
        constructor = Constructor(state, candidates, relaxation, prices)
        for part in (1.0, 0.0):
            reduced = relaxation.reduced(prices * part)
            columns = [state.at(row).candidate.column for row in range(candidates.num_jobs)]
            now = reduced[np.arange(candidates.num_jobs), columns]
            may_gain = constructor.may_gain(reduced, now)
            for row in range(candidates.num_jobs):
                before = state.take(row)
                found = constructor.best_fit(row, reduced[row], least=above(before.candidate.value))
                state.put(row, before)
                gains = found is not None and reduced[row, found.candidate.column] > above(float(now[row]))
                assert may_gain[row] or not gains
                gained += gains
                spared += not may_gain[row]
    assert gained > 50
    assert spared > 50


def test_that_jobs_beside_a_full_node_are_not_asked() -> None:
    small = problem(
        nodes(2),
        job("full", {"n0": 4}, model=linear_model(network_s=1e3)),
        job("half", {"n1": 2}, model=linear_model(network_s=1e3)),
    )
    candidates = build_candidates(small, list(small.jobs))
    cluster = Cluster(candidates.tables.facts, small.jobs)
    relaxation = Relaxation(candidates, cluster)
    free = np.zeros_like(solve_dual(candidates, relaxation).prices)
    reduced = relaxation.reduced(free)
    constructor = Constructor(State(cluster, candidates), candidates, relaxation, free)
    assert constructor.may_gain(reduced, reduced[:, -1]).tolist() == [False, True]
