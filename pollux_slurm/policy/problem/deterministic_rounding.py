"""Arithmetic that comes out the same on any machine, where decisions hang on it.

Sums, products and quotients of doubles are the same everywhere as long as their order is. But the order in
which a library multiplies matrices, and the last bit of its powers and exponentials, depend on the
processor. At the prices that the dual finds, two candidates of a job are worth the same but for such bits, by
which one would be taken here and the other there. So what comes of powers is rounded to fewer bits, and what
is compared is summed in a fixed order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# Bits that are kept of what is compared: differences of a part in 10^12 are still seen.
_BITS = 40


def round_to_bits(x: npt.ArrayLike, bits: int = _BITS) -> FloatArray:
    """Return numbers rounded to so many significant bits (Dekker, 1971); what is not finite stays."""
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        large = x * (2.0 ** (53 - bits) + 1.0)
        rounded = large - (large - x)
    return np.asarray(np.where(np.isfinite(rounded), rounded, x), dtype=np.float64)


def grid_step(unit: npt.ArrayLike, bits: int) -> FloatArray:
    """Return a power of two that is 2^−`bits` of `unit` or a little more."""
    return np.ldexp(1.0, np.frexp(unit)[1] - bits)  # type: ignore[no-any-return]


def round_to_grid(x: FloatArray, step: FloatArray) -> FloatArray:
    """Return numbers rounded to multiples of a power of two (`grid_step`)."""
    found: FloatArray = np.rint(x / step)
    found *= step
    return found


def ordered_inner(rows: FloatArray, x: FloatArray) -> FloatArray:
    """Return Σ rows·x along the last axis, summed in one order everywhere."""
    return np.add.reduce(rows * x, axis=-1)  # type: ignore[no-any-return]
