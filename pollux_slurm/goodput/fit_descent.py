"""Minimise a loss of a few bounded variables by damped Newton steps (Levenberg and Marquardt).

Legend: x the n variables; g the gradient of the loss and H its Hessian at x, B a positive diagonal, the unit
of the damping λ. A step d minimises  g·d + d·(H + λ·diag B)·d/2  within the bounds.

The systems have at most seven rows and are solved in plain Python. A call of LAPACK takes as long, and some
calls of OpenBLAS start one spinning thread per core: beside training, which keeps the cores busy, scipy's
L-BFGS-B took 50 to 150 ms of CPU time for 7 ms of work (scipy 1.17). Its truncated Newton method takes 9.9 ms
for a fit of 20 configurations, this one 0.9. On 599 sets of measurements, the loss was never more than 0.01 %
above that method's lowest from four starts.
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
# The descent ends with a step that lowers the loss by less than this part.
LAST_GAIN = 1e-5
# It ends before a step whose predicted gain is less than this part of that.
_LEAST_PREDICTED = 0.1


class Evaluated(Protocol):
    """The value of a loss at x."""

    @property
    def x(self) -> Vector: ...
    @property
    def value(self) -> float: ...


Point = TypeVar("Point", bound=Evaluated)


class Loss(Protocol[Point]):
    """A loss to minimise. It must be finite for all x within the bounds."""

    low: Vector
    high: Vector

    def at(self, x: Vector) -> Point:
        """Return the loss at x."""
        ...

    def derivatives(self, point: Point) -> tuple[Vector, Matrix, Vector]:
        """Return g, H and B at a point. H must be symmetric and positive semidefinite."""
        ...


def descend(loss: Loss[Point], start: Vector, *, last_gain: float = LAST_GAIN) -> Point:
    """Return the minimum reached from `start`, which is within the bounds."""
    point = loss.at(start)
    damping = _FIRST_DAMPING
    for _ in range(_MAX_STEPS):
        gradient, hessian, scale = loss.derivatives(point)
        low = [bound - value for bound, value in zip(loss.low, point.x, strict=True)]
        high = [bound - value for bound, value in zip(loss.high, point.x, strict=True)]
        while True:
            step, predicted = bounded_step(gradient, hessian, scale, damping, low, high)
            if 0.0 <= predicted <= _LEAST_PREDICTED * last_gain * point.value or damping > _MOST_DAMPING:
                return point
            if predicted > 0:
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
        ratio = gain / predicted
        small = gain < last_gain * point.value
        point = tried
        if small and ratio > 0.25:
            return point
        if ratio > 0.75:
            damping = max(0.1 * damping, _LEAST_DAMPING)
        elif ratio < 0.25:
            damping *= 4.0
    return point


def bounded_step(
    gradient: Vector, hessian: Matrix, scale: Vector, damping: float, low: Vector, high: Vector
) -> tuple[Vector, float]:
    """Return a step d with low ≤ d ≤ high, and its predicted gain −g·d − d·H·d/2.

    Where the unbounded step leaves the bounds, the first variable to reach its bound stays there, and the
    others are solved for again: at most n times. A variable does not move if it is at a bound and the
    gradient points outwards, or if the loss does not depend on it.
    """
    size = len(gradient)
    unit = [1.0 / math.sqrt(value) if value > 1e-290 else 0.0 for value in scale]
    step = [0.0] * size
    fixed: list[int] = []
    free = [
        i
        for i in range(size)
        if unit[i] > 0 and not (low[i] >= 0 and gradient[i] > 0) and not (high[i] <= 0 and gradient[i] < 0)
    ]
    while free:
        # In units of 1/√B, where the diagonal is about 1 + λ whatever the variables measure.
        if fixed:
            right_side = [
                -(gradient[i] + sum([hessian[i][j] * step[j] for j in fixed])) * unit[i] for i in free
            ]
        else:
            right_side = [-gradient[i] * unit[i] for i in free]
        matrix = []
        for width, i in enumerate(free, 1):
            source, of_i = hessian[i], unit[i]
            matrix.append([source[j] * of_i * unit[j] for j in free[:width]])
        first, part = -1, 1.0
        for i, solved in zip(free, solve(matrix, damping, right_side), strict=True):
            moved = step[i] = solved * unit[i]
            bound = low[i] if moved < 0 else high[i]
            if abs(moved) > abs(bound) and (bound / moved < part or first < 0):
                first, part = i, bound / moved
        if first < 0:
            break
        step[first] = low[first] if step[first] < 0 else high[first]
        fixed.append(first)
        free.remove(first)
    # For free variables g + (H + λ·B)·d = 0; for fixed ones, the rows are multiplied out.
    predicted = 0.0
    for i in free:
        predicted += 0.5 * step[i] * (damping * scale[i] * step[i] - gradient[i])
    for i in fixed:
        row = hessian[i]
        predicted -= step[i] * (gradient[i] + 0.5 * sum([row[j] * step[j] for j in range(size)]))
    return step, predicted


def solve(matrix: Sequence[Vector], damping: float, right_side: Sequence[float]) -> Vector:
    """Return z with (A + λ·1)·z = right_side, by Cholesky decomposition; `matrix` is the lower half of A.

    A is symmetric and positive semidefinite. z is finite even if rounding makes A slightly indefinite.
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
        value, right = source[i] + damping, right_side[i]
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
