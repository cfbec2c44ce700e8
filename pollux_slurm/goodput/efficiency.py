"""Statistical efficiency: the progress of an example at a larger batch (Pollux, OSDI 2021, section 3.1).

M0 is the initial batch size, M another one, scale = M/M0; `sqr` and `var` are |G|² and tr(Σ) at batch M0.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import GradientStatistics

FloatArray = npt.NDArray[np.float64]


def noise_scale(statistics: GradientStatistics, initial_batch_size: int) -> float:
    """Return φ = M0·tr(Σ)/|G|², in examples; infinite where |G|² is 0.

    It is 0 where both are 0 (nothing was estimated): a larger batch then brings nothing.
    """
    if statistics.sqr > 0:
        return initial_batch_size * statistics.var / statistics.sqr
    return math.inf if statistics.var > 0 else 0.0


def _at_noise_scale(scale: float) -> GradientStatistics:
    """Return statistics, at M0 = 1, whose noise scale is `scale` examples; it may be infinite.

    Goodput depends on the ratio of the two alone.
    """
    if math.isinf(scale):
        return GradientStatistics(sqr=0.0, var=1.0)
    return GradientStatistics(sqr=1.0, var=scale)


def conservative_statistics(
    statistics: GradientStatistics | None, initial_batch_size: int
) -> GradientStatistics | None:
    """Return the statistics at the low end of the noise scale's confidence interval.

    A larger batch then counts as helping only as far as the measurements are certain that it does.
    Statistics without an interval are returned unchanged.
    """
    if statistics is None or statistics.noise_low is None:
        return statistics
    if noise_scale(statistics, initial_batch_size) <= statistics.noise_low:
        return statistics
    low = _at_noise_scale(statistics.noise_low)
    return GradientStatistics(sqr=low.sqr * initial_batch_size, var=low.var)


def gain(
    statistics: GradientStatistics | None, initial_batch_size: int, batch_size: npt.ArrayLike
) -> FloatArray:
    """Return the AdaScale gain r = (var + sqr)/(var/scale + sqr): progress per step in units of M0.

    It is between 1 and scale for M ≥ M0, and 1 without statistics or where noise makes the denominator ≤ 0.
    """
    single: object = batch_size
    if isinstance(single, int):  # ten times as fast as with arrays
        return np.asarray(_gain_of_one(statistics, single / initial_batch_size))
    scale = np.asarray(batch_size, dtype=np.float64) / initial_batch_size
    if statistics is None:
        return np.ones_like(scale)
    denominator = statistics.var / scale + statistics.sqr
    numerator = np.full_like(denominator, statistics.var + statistics.sqr)
    return np.divide(numerator, denominator, out=np.ones_like(scale), where=denominator > 0)


def _gain_of_one(statistics: GradientStatistics | None, scale: float) -> float:
    denominator = 0.0 if statistics is None else statistics.var / scale + statistics.sqr
    return 1.0 if statistics is None or denominator <= 0 else (statistics.var + statistics.sqr) / denominator


def efficiency(
    statistics: GradientStatistics | None, initial_batch_size: int, batch_size: npt.ArrayLike
) -> FloatArray:
    """Return EFFICIENCY(M) = r/scale = (φ + M0)/(φ + M) (Pollux eq. 7), in (0, 1] for M ≥ M0.

    Without statistics it is M0/M: until noise is measured, a larger batch does not count as helping.
    """
    scale = np.asarray(batch_size, dtype=np.float64) / initial_batch_size
    return gain(statistics, initial_batch_size, batch_size) / scale
