"""Large neighbourhood search: remove a few jobs that share nodes, and place them again by branch and bound.

The job with the largest regret leads. With it go some jobs that share a node with it, now or in their current
allocations; a seeded generator draws them. The sum of values only grows. Work is bounded by counting steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from pollux_slurm.policy.candidates.placed_state import State
from pollux_slurm.policy.pricing.candidate_pruning import PrunedCandidates
from pollux_slurm.policy.problem.deterministic_rounding import above
from pollux_slurm.policy.search.branch_and_bound import BranchAndBound

# The fewest and the most jobs of a part. Small parts are searched completely; large ones escape from local
# optima of the small ones.
_FEWEST, _MOST = 3, 6


def improve_parts(
    state: State,
    pruned: PrunedCandidates,
    *,
    max_parts: int,
    tree_nodes: int,
    enough: float = np.inf,
    rng: random.Random,
    stop: Callable[[], bool],
) -> bool:
    """Improve parts of the state until `max_parts` were tried; return True if it was stopped before.

    The tree of each part has `tree_nodes` nodes at most. A state worth `enough` is improved no further.
    """
    leaders: list[int] = []
    value = state.value()
    slack = pruned.slack(state)
    for _ in range(max_parts):
        if above(value) >= enough:
            return False
        if stop():
            return True
        if not leaders:
            leaders = pruned.regretful(state)[::-1]
            if not leaders:
                return False
        leader = leaders.pop()
        part = _part(state, pruned, leader, rng)
        branch = BranchAndBound(state, pruned, part, slack=slack, max_nodes=tree_nodes)
        branch.run()
        if branch.gain > 0:
            leaders, value = [], value + branch.gain
            slack = pruned.slack(state)
    return False


def _part(state: State, pruned: PrunedCandidates, leader: int, rng: random.Random) -> list[int]:
    """Return a job and some jobs that share nodes with it or with each other."""
    part, size = [leader], rng.randint(_FEWEST, _MOST)
    while len(part) < size:
        job = rng.choice(part)
        nodes = {node for node, _ in (*state.at(job).gpus, *state.current[job])}
        if rng.random() < 0.3 or not nodes:
            nodes = {rng.randrange(len(state.members))}
        near = {other for node in nodes for other in (*state.members[node], *state.current_owners[node])}
        choice = sorted(other for other in near if other not in part and pruned.is_movable(other))
        if choice:
            part.append(rng.choice(choice))
        elif rng.random() < 0.2:
            break
    return part
