"""Prices of what jobs share, and what no allocation can exceed: the Lagrangian dual of the budgets.

Legend: J jobs, C columns, R resources (the GPUs of each type, the GPUs of each limit, the moves of a round).
For prices λ ≥ 0, every job takes the option with the most value less the price of all that it uses. With B
the budgets,

    L(λ) = λ·B + Σ_j max_o (value_o − λ·use_o)

is at least the value of any allocation within the budgets, placed or not; the least L over λ is the bound. L
is convex and piecewise linear, and its slope is B less what is taken. Over one price, the crossing of the
tangents at both ends of the interval finds the least exactly. Over several, all prices move at once, each by
a step that grows while its sign stays and shrinks when it turns; what is found is a bound wherever it stops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.menu import Menu
from pollux_slurm.policy.options import Option

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_CROSSINGS = 80
_JOINT_STEPS = 40
_SWEEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dual:
    """`prices` (R,) of one more of each resource; `bound` at least the value of every allocation.

    `choice` (J,) is the column that each job takes at these prices, −1 for what it has or nothing.
    """

    prices: FloatArray
    bound: float
    choice: IntArray


class Market:
    """Jobs that buy at given prices. `usable` (J, C) may narrow what is offered."""

    def __init__(self, menu: Menu, capacity: IntArray, usable: BoolArray | None = None) -> None:
        tables, count = menu.tables, menu.num_jobs
        kinds = len(tables.kinds)
        self._menu = menu
        self._kinds = kinds
        self._kind = tables.kind
        self._gpus = tables.num_gpus.astype(np.float64)
        self._value = menu.value if usable is None else np.where(usable, menu.value, -np.inf)
        self._stay_value = menu.stay_value
        self._stay_gpus = menu.stay_gpus[:count].astype(np.float64)
        self._held = self._stay_gpus.sum(axis=1)
        groups = menu.group_budget.size
        self._members = menu.members[:count].astype(np.float64)
        moves = [] if menu.max_moves is None else [menu.max_moves]
        self._has_moves = bool(moves)
        self._running = menu.moves.astype(np.float64)
        self.budget = np.array([*capacity, *menu.group_budget, *moves], dtype=np.float64)
        # What stands outside the objective holds its part of everything.
        outside = menu.stay_gpus[count:].astype(np.float64)
        self.budget[:kinds] -= outside.sum(axis=0)
        if groups:
            self.budget[kinds : kinds + groups] -= menu.members[count:].T @ outside.sum(axis=1)
        self._rows = np.arange(count)

    def _offers(self, prices: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
        kinds, count = self._kinds, len(self._rows)
        groups = self._members.shape[1]
        own = self._members @ prices[kinds : kinds + groups] if groups else None
        stay = self._stay_value - self._stay_gpus @ prices[:kinds]
        if own is not None:
            stay -= own * self._held
        if not self._value.shape[1]:
            return stay, np.full(count, -np.inf), np.zeros(count, dtype=np.int64)
        reduced = self._value - prices[self._kind] * self._gpus
        if own is not None and own.any():
            reduced -= own[:, None] * self._gpus
        pick = reduced.argmax(axis=1)
        best = reduced[self._rows, pick]
        if self._has_moves:
            best = best - prices[-1] * self._running
        return stay, best, pick

    def buy(self, prices: FloatArray) -> tuple[float, FloatArray, IntArray]:
        """Return L(λ), what is taken of each resource, and each job's column."""
        kinds = self._kinds
        groups = self._members.shape[1]
        stay, best, pick = self._offers(prices)
        new = best > stay
        total = float(np.where(new, best, stay).sum() + prices @ self.budget)
        gpus = np.where(new, self._gpus[pick] if len(self._gpus) else 0.0, 0.0)
        taken = np.empty(len(prices))
        held = self._stay_gpus[~new].sum(axis=0)
        kind = self._kind[pick] if len(self._kind) else pick
        taken[:kinds] = np.bincount(kind, weights=gpus, minlength=kinds) + held
        if groups:
            taken[kinds : kinds + groups] = (gpus + np.where(new, 0.0, self._held)) @ self._members
        if self._has_moves:
            taken[-1] = self._running[new].sum()
        return total, taken, np.where(new, pick, -1)

    def regrets(self, prices: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return the most of value − λ·use for each job, what it is for staying, and the best new column."""
        stay, best, pick = self._offers(prices)
        return np.maximum(stay, best), stay, pick

    def reduced(self, prices: FloatArray, job: int) -> FloatArray:
        """Return value − λ·use of every column of a job, staying last."""
        kinds = self._kinds
        own = float(self._members[job] @ prices[kinds : kinds + self._members.shape[1]])
        new = self._value[job] - (prices[self._kind] + own) * self._gpus
        if self._has_moves:
            new = new - prices[-1] * self._running[job]
        stay = self._stay_value[job] - self._stay_gpus[job] @ prices[:kinds] - own * self._held[job]
        return np.append(new, stay)

    def price_of(self, prices: FloatArray, job: int, option: Option) -> float:
        """Return λ·use of one option of a job."""
        kinds = self._kinds
        groups = self._members.shape[1]
        own = float(self._members[job] @ prices[kinds : kinds + groups]) if groups else 0.0
        if option.stays:
            return float(self._stay_gpus[job] @ prices[:kinds]) + own * float(self._held[job])
        moving = float(prices[-1]) if self._has_moves and self._running[job] else 0.0
        return (float(prices[option.kind]) + own) * option.num_gpus + moving


def solve_dual(menu: Menu, capacity: IntArray, usable: BoolArray | None = None) -> Dual:
    """Return the prices, the bound and the choices for one option per job within `capacity` (T,) GPUs.

    Where even the smallest options need more than there is, the bound is that of the last prices tried.
    """
    market = Market(menu, capacity, usable)
    kinds = len(capacity)
    search = _Search(market)
    search.at(np.zeros(len(market.budget)))
    if not search.short.any():
        return search.best
    finite = menu.value[np.isfinite(menu.value)]
    ends = [*finite.tolist()] if finite.size < 2 else [float(finite.min()), float(finite.max())]
    ends += menu.stay_value.tolist()
    highest = max(ends, default=1.0) - min(ends, default=0.0) + 1.0
    every_kind = np.zeros(len(market.budget))
    every_kind[:kinds] = 1.0
    search.along(np.zeros(len(market.budget)), every_kind, highest)
    if len(market.budget) == 1:
        return search.best
    search.jointly(_JOINT_STEPS)
    if menu.value.size <= _SMALL:
        for _ in range(_SWEEPS):
            for resource in range(len(market.budget)):
                direction = np.zeros(len(market.budget))
                direction[resource] = 1.0
                rest = search.best.prices * (1.0 - direction)
                search.along(rest, direction, highest)
    return search.best


# Up to this many jobs × columns, each price is also searched by itself.
_SMALL = 50_000


class _Search:
    def __init__(self, market: Market) -> None:
        self._market = market
        self.best = Dual(
            prices=np.zeros(len(market.budget)), bound=np.inf, choice=np.zeros(0, dtype=np.int64)
        )
        self.short = np.zeros(len(market.budget), dtype=bool)

    def at(self, prices: FloatArray) -> tuple[float, FloatArray]:
        total, taken, choice = self._market.buy(prices)
        if total < self.best.bound:
            self.best = Dual(prices=prices, bound=total, choice=choice)
        slope = self._market.budget - taken
        self.short = slope < 0
        return total, slope

    def along(self, start: FloatArray, direction: FloatArray, highest: float) -> None:
        """Find the least L over start + t·direction, t ≥ 0."""
        low, high = 0.0, highest
        low_total, slope = self.at(start)
        low_slope = float(slope @ direction)
        if low_slope >= 0:
            return
        high_total, slope = self.at(start + high * direction)
        high_slope = float(slope @ direction)
        if high_slope < 0:
            return  # more is needed than there is, whatever it costs
        guess = float(self.best.prices @ direction) / float(direction @ direction)
        for step in range(_CROSSINGS):
            crossing = (high_total - low_total + low_slope * low - high_slope * high) / (
                low_slope - high_slope
            )
            model = low_total + low_slope * (crossing - low)
            middle = crossing
            if step == 0 and low < guess < high:
                middle = guess
            elif step % 3 == 2:
                # Far from the end the tangents say little: halve on a scale of sizes.
                middle = float(np.sqrt(max(low, high * 1e-6) * high))
            if not low < middle < high:
                return
            total, slope = self.at(start + middle * direction)
            along = float(slope @ direction)
            if middle == crossing and total <= model + 1e-13 * abs(model):
                return
            if along < 0:
                low, low_total, low_slope = middle, total, along
            else:
                high, high_total, high_slope = middle, total, along

    def jointly(self, steps: int) -> None:
        """Move all prices at once by steps of their own."""
        prices = self.best.prices.copy()
        floor = max(float(prices.max()), 1e-12) * 1e-3
        step = np.full(len(prices), 0.3)
        last = np.zeros(len(prices))
        for _ in range(steps):
            _, slope = self.at(prices)
            sign = -np.sign(slope)
            sign[(prices == 0) & (slope > 0)] = 0.0
            step = np.where(sign * last < 0, step * 0.5, np.minimum(step * 1.2, 0.7))
            last = sign
            if not sign.any() or step.max() < 1e-5:
                return
            base = np.where((prices == 0) & (sign > 0), floor, prices)
            prices = base * np.exp(sign * step)
            prices[prices < floor * 1e-3] = 0.0
