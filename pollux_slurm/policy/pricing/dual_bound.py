"""Prices of what jobs share, and what no allocation can exceed: the Lagrangian dual of the budgets.

Legend: J jobs, C columns, T GPU types, n nodes; E classes of jobs, X cells of nodes, and their A resources
each (`shared_resources`). R resources in all: S = A·X of the cells, each limit's GPUs, the moves of a round.
For prices λ ≥ 0, every job takes the candidate with the most value less the price of all that it uses. With B
the budgets,

    L(λ) = λ·B + Σ_j max_o (value_o − λ·use_o)

is at least the value of any allocation within the budgets, placed or not; the least L over λ is the bound. L
is convex and piecewise linear, and its slope is B less the use. Over one price, the crossing of the tangents
at both ends of the interval finds the least exactly. Over several prices, GPU types replace each other, so
demand jumps between them at small changes. There L is smoothed: every job takes each candidate with
probability ∝ exp(reduced value/τ). Newton steps find the least of the smoothed L for ever smaller
temperatures τ. The result is a bound wherever the search stops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.shared_resources import Resources
from pollux_slurm.policy.pricing.relaxation import ROUNDING, Relaxation
from pollux_slurm.policy.problem.deterministic_rounding import (
    grid_step,
    ordered_inner,
    round_to_bits,
    round_to_grid,
)
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_CROSSINGS = 80
# If the typical price is too low, the next one tried is this many times as high.
_FURTHER = 8.0
# Temperatures of the smoothed dual, as parts of the highest price; and at each, the last Newton step is one
# that wins no more than this part of temperature × jobs. The dearest of several GPU types may cost ten times
# the cheapest, which a temperature must resolve as well.
_DESCENTS, _DESCENTS_OF_ONE_TYPE = ((0.012, 0.1), (0.004, 0.01)), ((0.1, 0.03), (0.03, 0.003))
_NEWTON_STEPS, _NEWTON_STEPS_OF_ONE_TYPE = 14, 6
# How much the curvature is damped at first, after a step that won, and after one that did not.
_DAMPING, _AFTER_WIN, _AFTER_LOSS = 0.03, 0.3, 10.0
# How near to the least along one line is near enough where all prices are moved together afterwards.
_COARSE = 1e-3
# And where each is moved alone.
_NEAR = 1e-5
# The first temperature only finds the region, for which this many jobs are enough.
_SAMPLE = 300
# Prices that are moved together are rounded to this many bits of the highest, for matrices are multiplied and
# equations solved a little differently on every machine.
_PRICE_BITS = 18


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dual:
    """`prices` (R,) of one more of each resource; `bound` at least the value of every allocation.

    `choice` (J,) is the column that each job takes at these prices, −1 for what it has or nothing.
    """

    prices: FloatArray
    bound: float
    choice: IntArray
    resources: Resources

    def node_prices(self) -> FloatArray:
        """Return the price of a GPU of each node, (n,): 0 where nothing new is taken."""
        return np.append(self._of_cells, 0.0)[self.resources.cell_of]  # −1, in no cell, is the last

    def kind_prices(self, count: int) -> FloatArray:
        """Return the price of a GPU of each of `count` types, (T,), where it is dearest."""
        on_kind = self.resources.kind_of[:, None] == np.arange(count)
        return np.asarray(np.where(on_kind, self._of_cells[:, None], 0.0).max(axis=0), dtype=np.float64)

    def job_prices(self, count: int) -> FloatArray:
        """Return the price of a GPU of each of `count` types where a job finds it cheapest, (J, T).

        It is 0 where it may have none.
        """
        inside: BoolArray = np.any(self.resources.may, axis=1)
        on_kind = inside[:, :, None] & (self.resources.kind_of[:, None] == np.arange(count))
        cheapest = np.where(on_kind, self._of_cells[:, None], np.inf).min(axis=1)
        found: FloatArray = np.where(np.isfinite(cheapest), cheapest, 0.0)[self.resources.class_of]
        return found

    @property
    def _of_cells(self) -> FloatArray:
        return self.prices[: len(self.resources.kind_of)]


def solve_dual(candidates: Candidates, relaxation: Relaxation, *, enough: float = -np.inf) -> Dual:
    """Return the prices, the bound and the choices for one candidate per job within what is shared.

    Where even the smallest need more than there is, the bound is that of the last prices tried. It is
    lowered no further once it is no more than `enough`.
    """
    search = _Search(relaxation, enough)
    _find_prices(candidates, relaxation, search)
    return Dual(
        prices=search.prices, bound=search.bound, choice=search.choice, resources=relaxation.resources
    )


def _find_prices(candidates: Candidates, relaxation: Relaxation, search: _Search) -> None:
    search.at(np.zeros(len(relaxation.budget)))
    if not search.short.any() or search.is_low_enough():
        return
    is_finite = np.isfinite(candidates.value)
    finite = candidates.value[is_finite]
    ends = [float(finite.min()), float(finite.max())] if finite.size else []
    ends += candidates.stay_value.tolist()
    kinds = relaxation.resources.kind_of
    direction = np.zeros(len(relaxation.budget))
    speeds = round_to_bits(_relative_speeds(candidates.tables))[kinds]
    direction[: len(kinds)] = speeds
    highest = (max(ends) - min(ends) + 1.0) / float(speeds.min())
    usual = _typical_price(candidates, is_finite)
    # The price of one cell's GPUs is found exactly: where nothing else is short, at a tie some of it may be.
    is_alone = len(kinds) == 1
    search.along(direction, usual, highest, nearness=0.0 if is_alone else _COARSE)
    if search.is_low_enough():
        return
    # Where one cell is short and another left over, no price of all together may help: then each alone.
    for cell in np.flatnonzero(search.short[: len(kinds)]).tolist():
        if search.prices[cell] == 0:
            search.along(np.eye(1, len(direction), cell)[0], usual, highest, nearness=_COARSE)
    if relaxation.num_classes > 1:
        # Partitions are mostly on their own: there, one price after the other goes most of the way.
        search.one_by_one(len(kinds), usual, highest)
        search.jointly(usual)
        search.one_by_one(len(kinds), usual, highest)
    elif search.short[is_alone:].any():
        search.jointly(usual)


def _typical_price(candidates: Candidates, is_finite: BoolArray) -> float:
    """Return what a GPU brings the median job between the least and the most that it is allowed.

    `is_finite` (J, C) are the values that are.
    """
    allowed = is_finite & (candidates.tables.num_gpus > 0)
    some = allowed.any(axis=1)
    if not some.any():
        return 0.0
    value, allowed = candidates.value[some], allowed[some]
    spread = np.max(value, axis=1, where=allowed, initial=-np.inf) - np.min(
        value, axis=1, where=allowed, initial=np.inf
    )
    gpus = np.where(allowed, candidates.tables.num_gpus, 0).max(axis=1)
    return float(_median(spread / gpus))


def _relative_speeds(tables: SpeedupTables) -> FloatArray:
    """Return how fast one GPU of each type is for the median job, the fastest being 1, of shape `(T,)`."""
    count = len(tables.kinds)
    if count == 1 or not len(tables.speedup):
        return np.ones(count)
    each = tables.speedup / np.maximum(tables.num_gpus, 1)
    best = np.array([np.max(each[:, tables.kind == kind], axis=1, initial=0.0) for kind in range(count)])
    fastest = best.max(axis=0)
    known = best[:, fastest > 0] / fastest[fastest > 0]
    return np.maximum(_median(known), 1e-3) if known.size else np.ones(count)


def _median(values: FloatArray) -> FloatArray:
    """Return the upper median along the last axis; `np.median` takes as long as a Newton step."""
    return np.asarray(np.sort(values, axis=-1)[..., values.shape[-1] // 2])


class _Search:
    """`bound` is the least L found, at `prices`; `short` marks resources used beyond the budget."""

    def __init__(self, relaxation: Relaxation, enough: float) -> None:
        self._relaxation, self._enough = relaxation, enough
        self.prices, self.bound = np.zeros(len(relaxation.budget)), np.inf
        self.choice: IntArray = np.full(0, -1, dtype=np.int64)
        self._slope = np.zeros(len(relaxation.budget))

    def is_low_enough(self) -> bool:
        return self.bound <= self._enough

    @property
    def short(self) -> BoolArray:
        found: BoolArray = self._slope < 0
        return found

    def at(self, prices: FloatArray) -> tuple[float, FloatArray]:
        terms, taken, choice = self._relaxation.choose(prices)
        total, slope = float(np.add.reduce(terms)), self._relaxation.budget - taken
        if total < self.bound:
            bound = total + ROUNDING * float(np.add.reduce(np.abs(terms)))
            if bound < self.bound:
                self.prices, self.bound, self.choice, self._slope = prices, bound, choice, slope
        return total, slope

    def along(self, direction: FloatArray, usual: float, highest: float, *, nearness: float) -> None:
        """Find the least L from the best prices on, in a direction, to a relative `nearness`.

        The `usual` price is where it is expected.
        """
        start, low, low_total = self.prices, 0.0, self.bound
        low_slope = float(ordered_inner(self._slope, direction))
        if low_slope >= 0:
            return
        high = min(usual, highest) if usual > 0 else highest
        while True:
            high_total, slope = self.at(start + high * direction)
            high_slope = float(ordered_inner(slope, direction))
            if self.is_low_enough():
                return
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
                # Far from the least, tangents are inaccurate: bisect on a logarithmic scale.
                middle = float(np.sqrt(max(low, high * 1e-6) * high))
            if not low < middle < high:
                return
            total, slope = self.at(start + middle * direction)
            along = float(ordered_inner(slope, direction))
            if self.is_low_enough():
                return
            if middle == crossing and total <= model + max(nearness, 1e-13) * abs(model):
                return
            if along < 0:
                low, low_total, low_slope = middle, total, along
            else:
                high, high_total, high_slope = middle, total, along

    def one_by_one(self, num_cells: int, usual: float, highest: float) -> None:
        """Find the least L over the price of each cell's GPUs in turn, up or down from the best prices."""
        for cell in range(num_cells):
            direction, price = np.eye(1, len(self.prices), cell)[0], float(self.prices[cell])
            if self._slope[cell] < 0:
                self.along(direction, price or usual, highest, nearness=_NEAR)
            elif self._slope[cell] > 0 and price > 0:
                self.along(-direction, price, price, nearness=_NEAR)

    def jointly(self, typical_price: float) -> None:
        """Move all prices at once: Newton steps on the smoothed dual, ever less smooth.

        `typical_price` is the scale where no price is known.
        """
        relaxation = self._relaxation
        prices = self.prices
        unit = float(prices.max()) or typical_price
        if not unit > 0:
            return
        descents = _DESCENTS_OF_ONE_TYPE if relaxation.num_cells == 1 else _DESCENTS
        looks = (relaxation.sample(_SAMPLE), relaxation)
        for (heat, settled), look in zip(descents, looks, strict=True):
            with np.errstate(over="ignore"):
                prices, is_smooth = _descend(look, prices, heat * unit, unit, settled)
            if not is_smooth:
                return
            self.at(prices)


def _descend(
    relaxation: Relaxation, prices: FloatArray, temperature: float, unit: float, settled: float
) -> tuple[FloatArray, bool]:
    """Return the prices of least L smoothed at one temperature, and whether L could be smoothed at all."""
    total, slope, curve = relaxation.smooth(prices, temperature)
    if not np.isfinite(curve).all():
        return prices, False  # values so far apart that nothing is smooth: keep the bound
    damping, step = _DAMPING, grid_step(unit, _PRICE_BITS)
    enough = settled * temperature * relaxation.num_jobs
    for _ in range(_NEWTON_STEPS_OF_ONE_TYPE if relaxation.num_cells == 1 else _NEWTON_STEPS):
        tried = np.maximum(prices + _newton_step(prices, slope, curve, unit, damping), 0.0)
        tried = round_to_grid(tried, step)
        found = relaxation.smooth(tried, temperature)
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
    some_stay = not np.logical_and.reduce(free)
    system = np.where(free[:, None] & free, curve, 0.0) if some_stay else curve.copy()
    diagonal = system.reshape(-1)[:: len(system) + 1]  # a view
    more, left = np.maximum(diagonal * damping, 1e-12), slope
    if some_stay:
        more, left = np.where(free, more, 1.0), np.where(free, slope, 0.0)
    diagonal += more
    step = -np.linalg.solve(system, left)
    # No price more than doubles or so at once.
    most = prices + unit
    return np.maximum(np.minimum(step, most), -most)
