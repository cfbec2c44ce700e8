"""The best options under a budget of GPUs, place aside: a multiple-choice knapsack by dynamic programming.

Without placement, its value bounds every placed answer from above.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pollux_slurm.policy.options import Option


def choose(options: Sequence[Sequence[Option]], budget: int) -> list[Option] | None:
    """Return one option for each job with the highest total value in at most `budget` GPUs.

    None when even the smallest options need more. Ties go to the option listed first.
    """
    best = np.zeros(budget + 1)
    picks = []
    for choices in options:
        after = np.full(budget + 1, -np.inf)
        pick = np.full(budget + 1, -1, dtype=np.int32)
        for position, option in enumerate(choices):
            if option.num_gpus > budget:
                continue
            reached = best[: budget + 1 - option.num_gpus] + option.value
            target = slice(option.num_gpus, budget + 1)
            better = reached > after[target] + 1e-12
            after[target] = np.where(better, reached, after[target])
            pick[target] = np.where(better, position, pick[target])
        best = after
        picks.append(pick)
    if not np.isfinite(best[budget]):
        return None
    chosen: list[Option] = []
    left = budget
    for choices, pick in zip(reversed(options), reversed(picks), strict=True):
        option = choices[int(pick[left])]
        chosen.append(option)
        left -= option.num_gpus
    return chosen[::-1]
