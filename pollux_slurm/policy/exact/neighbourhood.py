"""Solve small parts of a placed answer exactly: a few jobs that stand in each other's way, then others.

The jobs that regret most lead. With each, some that share a node with it, now or where they are at home, are
taken out and put back in the best way by branch and bound. The sum only grows. Which jobs go together is
drawn from a seeded generator, and work is bounded by counting.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from pollux_slurm.policy.candidates.placed_state import State
from pollux_slurm.policy.exact.branch_and_bound import Branch
from pollux_slurm.policy.pricing.candidate_pruning import Offers
from pollux_slurm.policy.problem.deterministic_rounding import above

# The fewest and the most jobs decided together. Small parts are searched whole, and large ones lead out of
# answers that no small one improves.
_FEWEST, _MOST = 3, 6


def improve_parts(
    state: State,
    offers: Offers,
    *,
    max_parts: int,
    tree_steps: int,
    enough: float = np.inf,
    rng: random.Random,
    stop: Callable[[], bool],
) -> bool:
    """Improve parts of the state until `max_parts` were tried; True if it was stopped before.

    The tree of each part has `tree_steps` nodes at most. A state worth `enough` is improved no further.
    """
    leaders: list[int] = []
    value = state.value()
    slack = offers.slack(state)
    for _ in range(max_parts):
        if above(value) >= enough:
            return False
        if stop():
            return True
        if not leaders:
            leaders = offers.regretful(state)[::-1]
            if not leaders:
                return False
        leader = leaders.pop()
        part = _part(state, offers, leader, rng)
        branch = Branch(state, offers, part, slack=slack, max_steps=tree_steps)
        branch.run()
        if branch.gain > 0:
            leaders, value = [], value + branch.gain
            slack = offers.slack(state)
    return False


def _part(state: State, offers: Offers, leader: int, rng: random.Random) -> list[int]:
    """Return a job and some of those that share its nodes, or whose nodes those share."""
    part, size = [leader], rng.randint(_FEWEST, _MOST)
    while len(part) < size:
        job = rng.choice(part)
        nodes = {node for node, _ in (*state.at(job).gpus, *state.home(job))}
        if rng.random() < 0.3 or not nodes:
            nodes = {rng.randrange(len(state.members))}
        near = {other for node in nodes for other in (*state.members[node], *state.at_home(node))}
        choice = sorted(other for other in near if other not in part and offers.is_movable(other))
        if choice:
            part.append(rng.choice(choice))
        elif rng.random() < 0.2:
            break
    return part
