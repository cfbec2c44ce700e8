"""Arithmetic whose results are the same on every machine, for values that decisions depend on.

Sums, products and quotients of doubles are the same everywhere if their order is. The order in which a
library multiplies matrices, and the last bits of its powers and exponentials, depend on the processor. At the
prices of the dual, two candidates of a job often differ in these bits only. So results of powers are rounded
to fewer bits, and sums that are compared are added in a fixed order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# Bits that are kept of compared values: enough to tell values apart that differ by a part in 10^12.
_BITS = 40
# Values closer than this part of them count as equal: rounding errors of sums are far smaller.
_EPSILON = 1e-10


def round_to_bits(x: npt.ArrayLike) -> FloatArray:
    """Return numbers rounded to 40 significant bits (Dekker, 1971); infinities and NaN stay."""
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        large = x * (2.0 ** (53 - _BITS) + 1.0)
        rounded = large - (large - x)
    finite = np.isfinite(rounded)
    return np.asarray(rounded if finite.all() else np.where(finite, rounded, x), dtype=np.float64)


def grid_step(unit: npt.ArrayLike, bits: int) -> FloatArray:
    """Return the smallest power of two that is at least `unit`·2^−`bits`."""
    return np.ldexp(1.0, np.frexp(unit)[1] - bits)  # type: ignore[no-any-return]


def round_to_grid(x: FloatArray, step: FloatArray) -> FloatArray:
    """Return numbers rounded to multiples of `step`, a power of two (`grid_step`)."""
    found: FloatArray = np.rint(x / step)
    found *= step
    return found


def ordered_inner(rows: FloatArray, x: FloatArray) -> FloatArray:
    """Return the inner products Σ rows·x along the last axis, added in a fixed order."""
    return np.add.reduce(rows * x, axis=-1)  # type: ignore[no-any-return]


def above(value: float) -> float:
    """Return the least value that counts as higher than `value`, so that rounding errors never move a job."""
    return value + _EPSILON * max(abs(value), 1.0)


def above_all(values: FloatArray) -> FloatArray:
    """Return `above` of each of many values."""
    found: FloatArray = np.abs(values)
    np.maximum(found, 1.0, out=found)
    found *= _EPSILON
    found += values
    return found
