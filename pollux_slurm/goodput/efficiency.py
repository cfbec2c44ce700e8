"""How much an example is worth at a larger batch: statistical efficiency (Pollux, OSDI 2021, section 3.1).

M0 is the initial batch size, M another one, scale = M/M0; `sqr` and `var` are |G|² and tr(Σ) at batch M0.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import GradientStatistics

FloatArray = npt.NDArray[np.float64]


def noise_scale(statistics: GradientStatistics, initial_batch_size: int) -> float:
    """Return φ = M0·tr(Σ)/|G|², in examples; infinite where the gradient is nothing but noise.

    0 when both are 0 (nothing was estimated), which counts a larger batch as worth nothing.
    """
    if statistics.sqr > 0:
        return initial_batch_size * statistics.var / statistics.sqr
    return math.inf if statistics.var > 0 else 0.0


def at_noise_scale(scale: float) -> GradientStatistics:
    """Return statistics, at M0 = 1, whose noise scale is `scale` examples; it may be infinite.

    Goodput depends on their ratio alone, so any pair with it will do.
    """
    if math.isinf(scale):
        return GradientStatistics(sqr=0.0, var=1.0)
    return GradientStatistics(sqr=1.0, var=scale)


def conservative_statistics(
    statistics: GradientStatistics | None, initial_batch_size: int
) -> GradientStatistics | None:
    """Return the statistics to count on: those at the low end of the noise scale's interval.

    A larger batch is then believed to help only as far as the measurements exclude that it does not.
    Statistics without an interval are returned as they are.
    """
    if statistics is None or statistics.noise_low is None:
        return statistics
    if noise_scale(statistics, initial_batch_size) <= statistics.noise_low:
        return statistics
    low = at_noise_scale(statistics.noise_low)
    return GradientStatistics(sqr=low.sqr * initial_batch_size, var=low.var)


def gain(
    statistics: GradientStatistics | None, initial_batch_size: int, batch_size: npt.ArrayLike
) -> FloatArray:
    """Return the AdaScale gain r = (var + sqr)/(var/scale + sqr): scale-invariant iterations per step.

    Between 1 and scale for M ≥ M0. 1 without statistics and wherever noise made the denominator ≤ 0.
    """
    one: object = batch_size
    if isinstance(one, int):  # a tenth of the time of the same with arrays
        return np.asarray(_gain_of_one(statistics, one / initial_batch_size))
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

    Without statistics it is M0/M: until noise was measured, a larger batch is not believed to help.
    """
    scale = np.asarray(batch_size, dtype=np.float64) / initial_batch_size
    return gain(statistics, initial_batch_size, batch_size) / scale
