"""The price of a GPU, and what no allocation can exceed: the Lagrangian dual of the budget of GPUs.

For a price λ ≥ 0 per GPU, every job takes the option with the most value less its GPUs' price. For budget B,

    L(λ) = λ·B + Σ_j max_o (value_o − λ·K_o)

is at least the value of any allocation of at most B GPUs, placed or not; the least L over λ is the bound.
L is convex, and its slope is B less the GPUs taken, so halving the interval of λ finds the least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pollux_slurm.policy.options import Option

_HALVINGS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Dual:
    """`price` is the value of one more GPU; `bound` at least the value of every allocation."""

    price: float
    bound: float


def solve_dual(options: Sequence[Sequence[Option]], budget: int) -> Dual:
    """Return the price of a GPU and the upper bound for one choice of option per job in `budget` GPUs.

    Where even the smallest options need more than the budget, the bound is that of the last price tried.
    """
    width = max((len(choices) for choices in options), default=0)
    value = np.full((len(options), width), -np.inf)
    gpus = np.zeros((len(options), width))
    for row, choices in enumerate(options):
        value[row, : len(choices)] = [option.value for option in choices]
        gpus[row, : len(choices)] = [option.num_gpus for option in choices]
    if width == 0:
        return Dual(price=0.0, bound=0.0)

    def at(price: float) -> tuple[float, float]:
        """Return L(λ) and the GPUs that are taken at this price."""
        reduced = value - price * gpus
        pick = reduced.argmax(axis=1)
        rows = np.arange(len(options))
        return float(reduced[rows, pick].sum() + price * budget), float(gpus[rows, pick].sum())

    bound, taken = at(0.0)
    if taken <= budget:
        return Dual(price=0.0, bound=bound)
    spread = value[np.isfinite(value)]
    low, high = 0.0, float(spread.max() - spread.min()) + 1.0
    price = high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        found, taken = at(middle)
        if found < bound:
            bound, price = found, middle
        if taken > budget:
            low = middle
        else:
            high = middle
    return Dual(price=price, bound=bound)
