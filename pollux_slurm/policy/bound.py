"""Prices of what jobs share, and what no allocation can exceed: the Lagrangian dual of the budgets.

Legend: J jobs, C columns, R resources: S that all share (`Market`), each limit's GPUs, the moves of a round.
For prices λ ≥ 0, every job takes the option with the most value less the price of all that it uses. With B
the budgets,

    L(λ) = λ·B + Σ_j max_o (value_o − λ·use_o)

is at least the value of any allocation within the budgets, placed or not; the least L over λ is the bound. L
is convex and piecewise linear, and its slope is B less what is taken. Over one price, the crossing of the
tangents at both ends of the interval finds the least exactly. Over several, GPU types replace each other,
so that demand jumps from one to the next at small changes; L is smoothed (every job spreads over its options
with probability ∝ exp(reduced value/τ)) and its least found by Newton steps for ever smaller temperatures τ.
What is found is a bound wherever it stops.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.menu import Menu
from pollux_slurm.policy.placement import Cluster
from pollux_slurm.policy.tables import Tables

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_CROSSINGS = 80
# Where the usual price is too low, the next to try is so many times as high.
_FURTHER = 8.0
_ROUNDING = 1e-14
# Temperatures of the smoothed dual, as parts of the highest price, and Newton steps at each. The dearest of
# several GPU types may cost ten times the cheapest, which a temperature must resolve as well.
_HEATS, _HEATS_OF_ONE_TYPE = (0.03, 0.005), (0.1, 0.03)
_NEWTON_STEPS, _NEWTON_STEPS_OF_ONE_TYPE = 14, 6
# At each, a step that wins no more than this part of temperature × jobs is the last.
_SETTLED = (1e-2, 1e-3)
# How much the curvature is damped at first, after a step that won, and after one that did not.
_DAMPING, _AFTER_WIN, _AFTER_LOSS = 0.03, 0.3, 10.0
# How near to the least along one line is near enough where all prices are moved together afterwards.
_COARSE = 1e-3
# The first temperature only looks for the region: this many jobs tell it as well as thousands.
_SAMPLE = 300


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dual:
    """`prices` (R,) of one more of each resource; `bound` at least the value of every allocation.

    `choice` (J,) is the column that each job takes at these prices, −1 for what it has or nothing.
    """

    prices: FloatArray
    bound: float
    choice: IntArray


class Market:
    """Jobs that buy at given prices. `usable` (J, C) may narrow what is offered.

    Of each GPU type there are three resources or more: GPUs; places for jobs over several nodes, one a
    node; and parts of nodes, by measures that count a share for more than its GPUs where what it leaves of a
    node is of little use (`_parts`): three GPUs of four count as the whole node, two as half, one as nothing.
    """

    def __init__(self, menu: Menu, cluster: Cluster, usable: BoolArray | None = None) -> None:
        tables, count = menu.tables, menu.num_jobs
        self._value = menu.value if usable is None else np.where(usable, menu.value, -np.inf)
        self._stay_value = menu.stay_value
        self.num_kinds = len(tables.kinds)
        self._gpus = tables.num_gpus.astype(np.float64)
        self._use, use_of_all, shared = _uses(menu, cluster)
        self._stay_use = use_of_all[:count]
        self._held = menu.stay_gpus[:count].sum(axis=1).astype(np.float64)
        self._num_shared = len(shared)
        self._members = menu.members[:count].astype(np.float64)
        moves = [] if menu.max_moves is None else [menu.max_moves]
        self._has_moves = bool(moves)
        self._running = menu.moves.astype(np.float64)
        # What stands outside the objective holds its part of everything.
        outside = menu.stay_gpus[count:].sum(axis=1)
        limits = menu.group_budget - outside @ menu.members[count:]
        self.budget = np.array(
            [*(shared - use_of_all[count:].sum(axis=0)), *limits, *moves], dtype=np.float64
        )
        self._rows = np.arange(count)

    @property
    def num_jobs(self) -> int:
        """The jobs that buy."""
        return len(self._rows)

    def sample(self, count: int) -> Market:
        """Return about `count` of the jobs, evenly picked, with their part of every budget."""
        step = len(self._rows) // max(count, 1)
        if step < 2:
            return self
        few = copy.copy(self)
        for name in ("_value", "_stay_value", "_stay_use", "_held", "_members", "_running"):
            setattr(few, name, getattr(self, name)[::step])
        few._rows = np.arange(len(few._stay_value))
        few.budget = self.budget * (len(few._rows) / len(self._rows))
        return few

    def _offers(self, prices: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return value − λ·use of staying and of the best new column, and that column, each (J,)."""
        shared, groups = self._num_shared, self._members.shape[1]
        stay = self._stay_value - self._stay_use @ prices[:shared]
        if not self._value.shape[1]:
            count = len(self._rows)
            return stay, np.full(count, -np.inf), np.zeros(count, dtype=np.int64)
        reduced = self._value - self._use @ prices[:shared]
        if groups:
            own = self._members @ prices[shared : shared + groups]
            stay -= own * self._held
            if own.any():
                reduced -= own[:, None] * self._gpus
        pick = reduced.argmax(axis=1)
        best = reduced[self._rows, pick]
        if self._has_moves:
            best = best - prices[-1] * self._running
        return stay, best, pick

    def buy(self, prices: FloatArray) -> tuple[float, FloatArray, IntArray]:
        """Return L(λ), what is taken of each resource, and each job's column."""
        shared, groups = self._num_shared, self._members.shape[1]
        stay, best, pick = self._offers(prices)
        new = best > stay
        total = float(np.where(new, best, stay).sum() + prices @ self.budget)
        taken = np.empty(len(prices))
        taken[:shared] = self._stay_use[~new].sum(axis=0) + self._use[pick[new]].sum(axis=0)
        if groups:
            gpus = self._held.copy()
            gpus[new] = self._gpus[pick[new]]
            taken[shared : shared + groups] = gpus @ self._members
        if self._has_moves:
            taken[-1] = self._running[new].sum()
        return total, taken, np.where(new, pick, -1)

    def smooth(self, prices: FloatArray, temperature: float) -> tuple[float, FloatArray, FloatArray]:
        """Return the smoothed L, its slope (R,) and its curvature (R, R)."""
        shared, groups = self._num_shared, self._members.shape[1]
        stay = self._stay_value - self._stay_use @ prices[:shared]
        reduced = self._value - self._use @ prices[:shared]
        if groups:
            own = self._members @ prices[shared : shared + groups]
            stay = stay - own * self._held
            reduced -= own[:, None] * self._gpus
        if self._has_moves:
            reduced -= (prices[-1] * self._running)[:, None]
        most = np.maximum(reduced.max(axis=1, initial=-np.inf), stay)
        reduced -= most[:, None]
        with np.errstate(over="ignore"):  # what is out of the question divides to −inf, and counts nothing
            reduced /= temperature
            stays = np.exp((stay - most) / temperature)
        part = np.exp(reduced, out=reduced)
        whole = part.sum(axis=1) + stays
        part /= whole[:, None]
        stays /= whole
        total = float((most + temperature * np.log(whole)).sum() + prices @ self.budget)

        # E[use] of each job, and Σ E[use·useᵀ] over all of them.
        mean = np.zeros((len(whole), len(prices)))
        held = stays[:, None] * self._stay_use
        new = part @ self._use
        mean[:, :shared] = new + held
        moment = np.zeros((len(prices), len(prices)))
        moment[:shared, :shared] = (self._use * part.sum(axis=0)[:, None]).T @ self._use
        moment[:shared, :shared] += held.T @ self._stay_use
        if groups:
            here = slice(shared, shared + groups)
            gpus, squared = part @ self._gpus, part @ self._gpus**2
            mean[:, here] = (gpus + stays * self._held)[:, None] * self._members
            both = part @ (self._use * self._gpus[:, None]) + held * self._held[:, None]
            moment[:shared, here] = both.T @ self._members
            moment[here, :shared] = moment[:shared, here].T
            weighted = self._members * (squared + stays * self._held**2)[:, None]
            moment[here, here] = weighted.T @ self._members
        if self._has_moves:
            mean[:, -1] = (1.0 - stays) * self._running
            moment[-1, -1] = mean[:, -1].sum()
            moment[:shared, -1] = moment[-1, :shared] = self._running @ new
            if groups:
                moment[here, -1] = moment[-1, here] = (self._running * gpus) @ self._members
        slope = self.budget - mean.sum(axis=0)
        with np.errstate(over="ignore"):
            return total, slope, (moment - mean.T @ mean) / temperature

    def reduced(self, prices: FloatArray) -> FloatArray:
        """Return value − λ·use of every column for every job, (J, C + 1): what it has comes last."""
        shared, groups = self._num_shared, self._members.shape[1]
        found = np.empty((len(self._rows), len(self._gpus) + 1))
        new, stay = found[:, :-1], found[:, -1]
        np.subtract(self._value, self._use @ prices[:shared], out=new)
        np.subtract(self._stay_value, self._stay_use @ prices[:shared], out=stay)
        if groups:
            own = self._members @ prices[shared : shared + groups]
            new -= own[:, None] * self._gpus
            stay -= own * self._held
        if self._has_moves:
            new -= (prices[-1] * self._running)[:, None]
        return found


def _uses(menu: Menu, cluster: Cluster) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return what each column (C, S) and what each job's holdings (J, S) take, and what there is (S,)."""
    tables = menu.tables
    kinds = len(tables.kinds)
    size = cluster.capacity[:, 0]
    widest = int(size.max(initial=0))
    parts = [_parts(m, widest) for m in ((1,) if widest <= 4 else (1, 2, 3))]
    on_kind = tables.kind[:, None] == np.arange(kinds)
    several = np.where(tables.num_nodes > 1, tables.num_nodes, 0)
    columns = [tables.num_gpus[:, None] * on_kind, several[:, None] * on_kind]
    share = tables.per_node  # 0 where it is free to choose: then nothing is said
    columns += [(part[np.minimum(share, widest)] * tables.num_nodes)[:, None] * on_kind for part in parts]

    held = np.zeros((len(menu.everyone), 2 + len(parts), kinds))
    spans = np.zeros(len(size), dtype=np.int64)
    for row, job in enumerate(menu.everyone):
        for name, gpus in job.current.gpus_by_node:
            node = cluster.index[name]
            wide = job.current.num_nodes > 1
            spans[node] += wide
            held[row, :, cluster.kind[node]] += (gpus, wide, *(part[gpus] for part in parts))

    def by_kind(amount: IntArray | FloatArray) -> FloatArray:
        return np.bincount(cluster.kind, weights=amount, minlength=kinds).astype(np.float64)

    # Jobs over several nodes that share one already may go on doing so.
    there = [by_kind(size), by_kind(np.maximum(spans, size > 0)), *(by_kind(part[size]) for part in parts)]
    use = np.concatenate(columns, axis=1).astype(np.float64)
    return use, held.reshape(len(held), use.shape[1]), np.concatenate(there)


def _parts(m: int, size: int) -> FloatArray:
    """Return u(k), k from 0 to `size`: with x = k/size, x where (m + 1)·x is whole, else ⌊(m + 1)·x⌋/m.

    u(a) + u(b) ≤ u(a + b), so Σ u(shares) on a node is at most u of the node (Fekete and Schepers, 2001).
    """
    gpus = np.arange(size + 1)
    whole, rest = np.divmod((m + 1) * gpus, max(size, 1))
    return np.where(rest == 0, gpus / max(size, 1), whole / m)


def solve_dual(menu: Menu, market: Market) -> Dual:
    """Return the prices, the bound and the choices for one option per job within what is shared.

    Where even the smallest options need more than there is, the bound is that of the last prices tried.
    """
    search = _Search(market)
    search.at(np.zeros(len(market.budget)))
    if not search.short.any():
        return search.best
    finite = menu.value[np.isfinite(menu.value)]
    ends = [float(finite.min()), float(finite.max())] if finite.size else []
    ends += menu.stay_value.tolist()
    kinds = len(menu.tables.kinds)
    direction = np.zeros(len(market.budget))
    direction[:kinds] = _relative_speeds(menu.tables)
    highest = (max(ends) - min(ends) + 1.0) / float(direction[direction > 0].min())
    usual = _usual_price(menu)
    search.along(direction, usual, highest, nearness=0.0 if kinds == 1 else _COARSE)
    # Where one type is short and another left over, no price of all together may help: then each alone.
    for kind in np.flatnonzero(search.short[:kinds]).tolist():
        if search.best.prices[kind] == 0:
            search.along(np.eye(1, len(direction), kind)[0], usual, highest, nearness=_COARSE)
    if search.short.any():
        search.jointly(usual)
    return search.best


def _usual_price(menu: Menu) -> float:
    """Return what a GPU brings the median job between the least and the most that it is offered."""
    offered = np.isfinite(menu.value) & (menu.tables.num_gpus > 0)
    some = offered.any(axis=1)
    if not some.any():
        return 0.0
    value, offered = menu.value[some], offered[some]
    spread = np.max(value, axis=1, where=offered, initial=-np.inf) - np.min(
        value, axis=1, where=offered, initial=np.inf
    )
    gpus = np.where(offered, menu.tables.num_gpus, 0).max(axis=1)
    return float(np.median(spread / gpus))


def _relative_speeds(tables: Tables) -> FloatArray:
    """Return how fast one GPU of each type is for the median job, the fastest being 1, of shape `(T,)`."""
    count = len(tables.kinds)
    if count == 1 or not len(tables.speedup):
        return np.ones(count)
    each = tables.speedup / np.maximum(tables.num_gpus, 1)
    best = np.array([np.max(each[:, tables.kind == kind], axis=1, initial=0.0) for kind in range(count)])
    fastest = best.max(axis=0)
    known = best[:, fastest > 0] / fastest[fastest > 0]
    return np.maximum(np.median(known, axis=1), 1e-3) if known.size else np.ones(count)


class _Search:
    """`best` is the least L found, `short` tells which resources are taken up more than there is at it."""

    def __init__(self, market: Market) -> None:
        self._market = market
        self.best = Dual(
            prices=np.zeros(len(market.budget)), bound=np.inf, choice=np.zeros(0, dtype=np.int64)
        )
        self._slope = np.zeros(len(market.budget))

    @property
    def short(self) -> BoolArray:
        found: BoolArray = self._slope < 0
        return found

    def at(self, prices: FloatArray) -> tuple[float, FloatArray]:
        total, taken, choice = self._market.buy(prices)
        slope = self._market.budget - taken
        # Sums of large terms that cancel are only so exact; the bound is to hold all the same.
        bound = total + _ROUNDING * float(prices @ np.abs(self._market.budget))
        if bound < self.best.bound:
            self.best, self._slope = Dual(prices=prices, bound=bound, choice=choice), slope
        return total, slope

    def along(self, direction: FloatArray, usual: float, highest: float, *, nearness: float) -> None:
        """Find the least L from the best prices on, in a direction, to a relative `nearness`.

        The `usual` price is where it is expected.
        """
        start, low, low_total = self.best.prices, 0.0, self.best.bound
        low_slope = float(self._slope @ direction)
        if low_slope >= 0:
            return
        high = min(usual, highest) if usual > 0 else highest
        while True:
            high_total, slope = self.at(start + high * direction)
            high_slope = float(slope @ direction)
            if high_slope >= 0:
                break
            if high >= highest:
                return  # more is needed than there is, whatever it costs
            low, low_total, low_slope, high = high, high_total, high_slope, min(_FURTHER * high, highest)
        for step in range(_CROSSINGS):
            crossing = (high_total - low_total + low_slope * low - high_slope * high) / (
                low_slope - high_slope
            )
            model = low_total + low_slope * (crossing - low)
            middle = crossing
            if step % 3 == 2:
                # Far from the end the tangents say little: halve on a scale of sizes.
                middle = float(np.sqrt(max(low, high * 1e-6) * high))
            if not low < middle < high:
                return
            total, slope = self.at(start + middle * direction)
            along = float(slope @ direction)
            if middle == crossing and total <= model + max(nearness, 1e-13) * abs(model):
                return
            if along < 0:
                low, low_total, low_slope = middle, total, along
            else:
                high, high_total, high_slope = middle, total, along

    def jointly(self, usual_price: float) -> None:
        """Move all prices at once: Newton steps on the smoothed dual, ever less smooth.

        `usual_price` is the scale to look on where no price was found yet.
        """
        market = self._market
        prices = self.best.prices
        unit = float(prices.max()) or usual_price
        if not unit > 0:
            return
        heats = _HEATS_OF_ONE_TYPE if market.num_kinds == 1 else _HEATS
        looks = (market.sample(_SAMPLE), market)
        for heat, settled, look in zip(heats, _SETTLED, looks, strict=True):
            prices, is_smooth = _descend(look, prices, heat * unit, unit, settled)
            if not is_smooth:
                return
            self.at(prices)


def _descend(
    market: Market, prices: FloatArray, temperature: float, unit: float, settled: float
) -> tuple[FloatArray, bool]:
    """Return the prices of least L smoothed at one temperature, and whether L could be smoothed at all."""
    total, slope, curve = market.smooth(prices, temperature)
    if not np.isfinite(curve).all():
        return prices, False  # values so far apart that nothing is smooth: the bound stands as it is
    damping = _DAMPING
    enough = settled * temperature * market.num_jobs
    for _ in range(_NEWTON_STEPS_OF_ONE_TYPE if market.num_kinds == 1 else _NEWTON_STEPS):
        tried = np.maximum(prices + _newton_step(prices, slope, curve, unit, damping), 0.0)
        found = market.smooth(tried, temperature)
        won = total - found[0]
        if not won > 0.0:
            damping *= _AFTER_LOSS  # towards the slope alone, where a short step must win
            if damping > 1e5:
                break
            continue
        prices, (total, slope, curve) = tried, found
        damping = max(damping * _AFTER_WIN, 1e-6)
        if won <= enough:
            break
    return prices, True


def _newton_step(
    prices: FloatArray, slope: FloatArray, curve: FloatArray, unit: float, damping: float
) -> FloatArray:
    """Return the step to the least of the local parabola, along the prices that are free to move."""
    free = (prices > 0) | (slope < 0)
    # The prices that stay are taken out of the equations, each with one of its own that says so.
    system = np.where(free[:, None] & free, curve, 0.0)
    diagonal = np.einsum("ii->i", system)
    diagonal += np.where(free, np.maximum(diagonal * damping, 1e-12), 1.0)
    step = -np.linalg.solve(system, np.where(free, slope, 0.0))
    # No price more than doubles or so at once.
    return np.clip(step, -prices - unit, prices + unit)
