"""The generalized mean of what jobs get (Pollux, OSDI 2021, eq. 12).

For each job x = f·SPEEDUP + floor and a weight w; FITNESS_p = (Σ w·x^p / Σ w)^(1/p), the geometric mean for
p = 0. It grows with Σ w·x^p/p, and near p = 0 with Σ w·(x^p − 1)/p, which tends to Σ w·log x. Solvers
maximise this sum, to which each job contributes one term.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def contribution(exponent: float, x: npt.ArrayLike) -> FloatArray:
    """Return the term x^p/p of each x = f·SPEEDUP + floor, without its weight; (x^p − 1)/p near p = 0."""
    x = np.asarray(x, dtype=np.float64)
    if exponent == -1.0:
        return np.asarray(-1.0 / x, dtype=np.float64)
    if abs(exponent) >= 0.5:
        return np.asarray(x**exponent / exponent, dtype=np.float64)
    return _powered(np.log(x), exponent)


def mean(exponent: float, x: npt.ArrayLike, weight: Sequence[float] | FloatArray | None = None) -> float:
    """Return the generalized mean of all jobs' x = f·SPEEDUP + floor; 0 for no job."""
    x = np.asarray(x, dtype=np.float64)
    if x.size == 0:
        return 0.0
    # Relative to the largest (or smallest), so that a large exponent neither overflows nor underflows.
    reference = x.max() if exponent > 0 else x.min()
    log_x, weights = np.log(x / reference), None if weight is None else np.asarray(weight)
    if abs(exponent) >= 0.5:
        # All terms are positive: nothing cancels where one of little weight is by far the smallest.
        return float(reference * np.average(np.exp(exponent * log_x), weights=weights) ** (1.0 / exponent))
    average = float(np.average(_powered(log_x, exponent), weights=weights))
    scaled = np.log1p(average * exponent) / exponent if abs(exponent) >= 1e-12 else average
    return float(reference * np.exp(scaled))


def mean_of_sum(exponent: float, total: float, weight: float) -> float:
    """Return the fitness whose weighted sum of contributions is `total`; infinite beyond its range."""
    average = total / weight
    if abs(exponent) < 1e-12:
        return float(np.exp(min(average, 700.0)))
    inner = average * exponent + (0.0 if abs(exponent) >= 0.5 else 1.0)
    if inner <= 0.0:
        return float("inf") if exponent < 0 else 0.0
    return float(np.exp(min(np.log(inner) / exponent, 700.0)))


def _powered(log_x: FloatArray, exponent: float) -> FloatArray:
    """Return (x^p − 1)/p, which tends to log x for p → 0 and is computed without cancellation there."""
    if abs(exponent) < 1e-12:
        return log_x
    return np.asarray(np.expm1(exponent * log_x) / exponent, dtype=np.float64)
