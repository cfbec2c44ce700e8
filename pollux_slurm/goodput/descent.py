"""Minimise a loss of a handful of bounded variables by damped Newton steps (Levenberg and Marquardt).

Legend: x the variables, n of them; g the slope of the loss and H its curvature there, B the positive diagonal
that the damping λ is measured in. A step d minimises  g·d + d·(H + λ·diag B)·d/2  within the bounds.

The systems have at most seven rows and are solved in plain Python. A call of LAPACK takes as long, and some
of OpenBLAS's wake a thread per core that spins: beside training, which keeps the cores busy, scipy's L-BFGS-B
made 50 to 150 ms of CPU time out of 7 ms of work (scipy 1.17).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

Vector = list[float]
Matrix = list[Vector]

_FIRST_DAMPING = 1e-2
_LEAST_DAMPING, _MOST_DAMPING = 1e-8, 1e8
_MAX_STEPS = 60
# A step that gains less than this part of the loss is the last one; one that promises less is not taken.
LAST_GAIN = 1e-5
# The latter as a part of the former.
_LEAST_GAIN = 0.1


class Evaluated(Protocol):
    """A loss at some variables."""

    @property
    def x(self) -> Vector: ...
    @property
    def value(self) -> float: ...


Point = TypeVar("Point", bound=Evaluated)


class Loss(Protocol[Point]):
    """What is minimised. It must be finite for all x within the bounds."""

    low: Vector
    high: Vector

    def at(self, x: Vector) -> Point:
        """Return the loss at x."""
        ...

    def expansion(self, point: Point) -> tuple[Vector, Matrix, Vector]:
        """Return g, H and B at a point: H symmetric, and not negative in any direction."""
        ...


def descend(loss: Loss[Point], start: Vector, *, last_gain: float = LAST_GAIN) -> Point:
    """Return the minimum reached from `start`, which is within the bounds."""
    point = loss.at(start)
    damping = _FIRST_DAMPING
    for _ in range(_MAX_STEPS):
        slope, curvature, scale = loss.expansion(point)
        low = [bound - value for bound, value in zip(loss.low, point.x, strict=True)]
        high = [bound - value for bound, value in zip(loss.high, point.x, strict=True)]
        while True:
            step, promise = bounded_step(slope, curvature, scale, damping, low, high)
            if 0.0 <= promise <= _LEAST_GAIN * last_gain * point.value or damping > _MOST_DAMPING:
                return point
            if promise > 0:
                # Rounding may make x + (bound − x) another number than the bound.
                moved = [
                    min(max(value + change, least), most)
                    for value, change, least, most in zip(point.x, step, loss.low, loss.high, strict=True)
                ]
                tried = loss.at(moved)
                gain = point.value - tried.value
                if gain > 0:
                    break
            damping *= 8.0
        kept = gain / promise
        small = gain < last_gain * point.value
        point = tried
        if small and kept > 0.25:
            return point
        if kept > 0.75:
            damping = max(0.1 * damping, _LEAST_DAMPING)
        elif kept < 0.25:
            damping *= 4.0
    return point


def bounded_step(
    slope: Vector, curvature: Matrix, scale: Vector, damping: float, low: Vector, high: Vector
) -> tuple[Vector, float]:
    """Return a step d with low ≤ d ≤ high and what it promises to gain, −g·d − d·H·d/2.

    Where the step of all variables would leave the bounds, the first to reach its bound stays there, and the
    others are solved for again: n times at most. A variable at its bound that the slope pushes outwards, or
    on which nothing depends, does not move.
    """
    size = len(slope)
    unit = [1.0 / math.sqrt(value) if value > 1e-290 else 0.0 for value in scale]
    step = [0.0] * size
    fixed: list[int] = []
    free = [
        i
        for i in range(size)
        if unit[i] > 0 and not (low[i] >= 0 and slope[i] > 0) and not (high[i] <= 0 and slope[i] < 0)
    ]
    while free:
        # In units of 1/√B, where the diagonal is about 1 + λ whatever the variables measure.
        if fixed:
            wanted = [-(slope[i] + sum([curvature[i][j] * step[j] for j in fixed])) * unit[i] for i in free]
        else:
            wanted = [-slope[i] * unit[i] for i in free]
        matrix = []
        for width, i in enumerate(free, 1):
            source, of_i = curvature[i], unit[i]
            matrix.append([source[j] * of_i * unit[j] for j in free[:width]])
        first, part = -1, 1.0
        for i, solved in zip(free, solve(matrix, damping, wanted), strict=True):
            moved = step[i] = solved * unit[i]
            bound = low[i] if moved < 0 else high[i]
            if abs(moved) > abs(bound) and (bound / moved < part or first < 0):
                first, part = i, bound / moved
        if first < 0:
            break
        step[first] = low[first] if step[first] < 0 else high[first]
        fixed.append(first)
        free.remove(first)
    # Of those that are free, g + (H + λ·B)·d = 0; the others' rows are multiplied out.
    promise = 0.0
    for i in free:
        promise += 0.5 * step[i] * (damping * scale[i] * step[i] - slope[i])
    for i in fixed:
        row = curvature[i]
        promise -= step[i] * (slope[i] + 0.5 * sum([row[j] * step[j] for j in range(size)]))
    return step, promise


def solve(matrix: Sequence[Vector], damping: float, wanted: Sequence[float]) -> Vector:
    """Return z with (A + λ·1)·z = wanted, for the lower half of a symmetric A ≥ 0, by Cholesky's factors.

    z is finite even if rounding left A below zero in some direction.
    """
    factor: list[Vector] = []
    z: Vector = []
    for i, source in enumerate(matrix):
        row: Vector = []
        for j in range(i):
            above = factor[j]
            value = source[j]
            for k in range(j):
                value -= row[k] * above[k]
            row.append(value * above[j])
        value, right = source[i] + damping, wanted[i]
        for k in range(i):
            value -= row[k] * row[k]
            right -= row[k] * z[k]
        inverse = 1.0 / math.sqrt(value) if value > 1e-12 else 1.0
        row.append(inverse)
        factor.append(row)
        z.append(right * inverse)
    for i in range(len(z) - 1, -1, -1):
        row = factor[i]
        z[i] *= row[i]
        for k in range(i):
            z[k] -= row[k] * z[i]
    return z
