"""The gradient noise scale from independent gradient estimates of any sizes (Pollux section 3.1).

Legend: C parts; part c is the mean gradient g_c over n_c examples; M = Σ n_c; ḡ = Σ (n_c/M)·g_c; G the true
gradient; σ² the trace of the covariance of one example's gradient; φ = σ²/|G|² the noise scale, in examples.

    E|g_c|² = |G|² + σ²/n_c   and   E|ḡ|² = |G|² + σ²/M,   so with S = Σ n_c·|g_c|²:
    E[S − M·|ḡ|²] = (C − 1)·σ²,

which gives the unbiased pair  σ̂² = (S − M·|ḡ|²)/(C − 1)  and  |Ĝ|² = |ḡ|² − σ̂²/M  for any n_c. Parts are the
micro-batches of all replicas. With only one in a step they are the halves of a step (`half_batches`), or the
gradients of two consecutive steps, between which the weights move: then both estimates are biased.

**Confidence.** The smoothed pair is a weighted mean x̄ = Σ w_t·x_t / Σ w_t of the steps' pairs x_t, which are
independent of each other. Its covariance is estimated by Σ w_t²·(x_t − x̄)(x_t − x̄)ᵀ / (Σ w_t)², which holds
for steps of any variance (batches of changing size). The interval of the ratio φ is Fieller's: all φ for
which σ² − φ·|G|² is not significantly other than 0. It has no upper end while |G|² itself is not
significantly above 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pollux_slurm.model import GradientStatistics

# Examples, in units of M0, after which an old estimate counts 1/e.
_HORIZON = 500.0
# Standard errors to either side: 99 % of a normal distribution. A long job changes its batch size hundreds of
# times because of this interval, so one wrong in twenty would be too many.
_Z = 2.576
# With fewer effective steps the interval is unbounded.
_MIN_EFFECTIVE = 4.0
_MAX_VALUE = 1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseInterval:
    """Confidence intervals (99 % unless asked for others) of |G|², tr Σ at batch M0, and φ, as (low, high).

    Ends are ≥ 0; a high end is infinite where there is no upper bound. `num_effective` is the effective
    number of equally weighted steps.
    """

    sqr: tuple[float, float]
    var: tuple[float, float]
    scale: tuple[float, float]
    num_effective: float


class NoiseEstimator:
    """Smoothed |G|² and σ², for one initial batch size M0. Plain floats: nothing here touches a device.

    Norms may be given for each parameter group; the pair is kept for each group, the interval for their sum.
    """

    def __init__(self, *, horizon_batches: float = _HORIZON) -> None:
        self._horizon_batches = horizon_batches
        self._initial_batch_size = 1
        self.reset()

    def reset(self) -> None:
        """Forget everything but M0."""
        self.num_updates = 0
        # True once gradients of different steps were compared.
        self.drifts = False
        # The results of `statistics` and `group_statistics`, which each step calls, until the next update.
        self._cached: GradientStatistics | None = None
        self._cached_groups: tuple[GradientStatistics, ...] = ()
        # Σw, Σw²; then Σw·x by group; then Σw²·x and Σw²·x·xᵀ of the sums over the groups, x = (|Ĝ|², σ̂²).
        self._weight = self._weight2 = 0.0
        self._sqr: list[float] = []
        self._sigma2: list[float] = []
        self._first = [0.0, 0.0]
        self._second = [0.0, 0.0, 0.0]

    def set_initial_batch_size(self, initial_batch_size: int) -> None:
        """Set M0, the unit of statistics and horizon."""
        if initial_batch_size != self._initial_batch_size:
            self._initial_batch_size = initial_batch_size
            self._cached, self._cached_groups = None, ()

    def update(
        self,
        *,
        parts_sum: float | Sequence[float],
        mean_sqr: float | Sequence[float],
        num_examples: int,
        num_parts: int,
        span: int | None = None,
        drifts: bool = False,
    ) -> bool:
        """Add one step: S and |ḡ|² (of each parameter group), M and C. False, without effect, if not usable.

        `span` is how many examples the step stands for, where not each step is measured (M unless given).
        `drifts` where the parts are gradients of different steps: the first other step replaces them all.
        """
        sums, means = _each(parts_sum), _each(mean_sqr)
        if num_parts < 2 or num_examples < 1 or not all(map(math.isfinite, (*sums, *means))):
            return False
        sigma2 = [(s - num_examples * m) / (num_parts - 1) for s, m in zip(sums, means, strict=True)]
        sqr = [m - v / num_examples for m, v in zip(means, sigma2, strict=True)]
        total = sum(sqr), sum(sigma2)
        if max(abs(total[0]), abs(total[1])) > _MAX_VALUE:
            return False
        if len(sqr) != len(self._sqr) or (self.drifts and not drifts):
            # The first step; a parameter group was added, so earlier norms have another shape; or no drift.
            self.reset()
            self._sqr, self._sigma2 = [0.0] * len(sqr), [0.0] * len(sqr)
        keep = math.exp(-(span or num_examples) / (self._horizon_batches * self._initial_batch_size))
        new = 1.0 - keep
        # Weights and sums are smoothed alike, so their ratio has no bias towards the initial zero.
        self._weight = keep * self._weight + new
        self._weight2 = keep**2 * self._weight2 + new**2
        self._sqr = [keep * old + new * x for old, x in zip(self._sqr, sqr, strict=True)]
        self._sigma2 = [keep * old + new * x for old, x in zip(self._sigma2, sigma2, strict=True)]
        squares = total[0] ** 2, total[0] * total[1], total[1] ** 2
        self._first = [keep**2 * old + new**2 * x for old, x in zip(self._first, total, strict=True)]
        self._second = [keep**2 * old + new**2 * x for old, x in zip(self._second, squares, strict=True)]
        self.num_updates += 1
        self.drifts = drifts
        self._cached, self._cached_groups = None, ()
        return True

    def _means(self) -> tuple[list[float], list[float]]:
        """Return the estimates of |G|² and σ² by parameter group, which may be negative."""
        return [x / self._weight for x in self._sqr], [x / self._weight for x in self._sigma2]

    def statistics(self) -> GradientStatistics | None:
        """Return |G|², tr Σ at batch M0 and the interval of φ; None before the first update.

        Noise can make an estimate negative; no true value is, so it is then 0.
        """
        if self.num_updates == 0 or self._cached is not None:
            return self._cached
        low, high = self.interval().scale
        sqr, sigma2 = self._means()
        self._cached = GradientStatistics(
            sqr=max(sum(sqr), 0.0),
            var=max(sum(sigma2), 0.0) / self._initial_batch_size,
            noise_low=min(low, _MAX_VALUE),
            noise_high=high if high < _MAX_VALUE else None,
        )
        return self._cached

    @property
    def source(self) -> str | None:
        """From what the estimates are, for people; None before the first."""
        if self.num_updates == 0:
            return None
        return "consecutive steps" if self.drifts else "parts of a step"

    def group_statistics(self) -> tuple[GradientStatistics, ...]:
        """Return |G|² and tr Σ of each parameter group; empty before the first update."""
        if self.num_updates > 0 and not self._cached_groups:
            self._cached_groups = tuple(
                GradientStatistics(sqr=max(sqr, 0.0), var=max(sigma2, 0.0) / self._initial_batch_size)
                for sqr, sigma2 in zip(*self._means(), strict=True)
            )
        return self._cached_groups

    def interval(self, *, z: float = _Z) -> NoiseInterval:
        """Return the confidence intervals of the estimates, `z` normal standard errors to either side.

        With too few steps, all are from 0 to infinity.
        """
        unknown = (0.0, math.inf)
        num = self._weight**2 / self._weight2 if self._weight2 > 0 else 0.0
        if num < _MIN_EFFECTIVE:
            return NoiseInterval(sqr=unknown, var=unknown, scale=unknown, num_effective=num)
        b, a = sum(self._sqr) / self._weight, sum(self._sigma2) / self._weight
        (first_b, first_a), (bb, ab, aa) = self._first, self._second
        # Σw²(x − x̄)(x − x̄)ᵀ/(Σw)², with Bessel's correction for the number of steps that count.
        factor = num / (num - 1.0) / self._weight**2
        var_b = max(bb - 2 * b * first_b + b * b * self._weight2, 0.0) * factor
        var_a = max(aa - 2 * a * first_a + a * a * self._weight2, 0.0) * factor
        cov = (ab - a * first_b - b * first_a + a * b * self._weight2) * factor
        # Rounding must not leave a covariance that is larger than its variances allow.
        cov = min(max(cov, -math.sqrt(var_a * var_b)), math.sqrt(var_a * var_b))
        zz = _student(z, num - 1.0) ** 2
        aa, ab, bb = zz * var_a, zz * cov, zz * var_b
        half_b, half_a, size = math.sqrt(bb), math.sqrt(aa), self._initial_batch_size
        return NoiseInterval(
            sqr=(max(b - half_b, 0.0), max(b + half_b, 0.0)),
            var=(max(a - half_a, 0.0) / size, max(a + half_a, 0.0) / size),
            scale=ratio_interval(a, b, aa, ab, bb),
            num_effective=num,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {
            "weights": [self._weight, self._weight2],
            "sqr": list(self._sqr),
            "sigma2": list(self._sigma2),
            "moments": [*self._first, *self._second],
            "num_updates": self.num_updates,
            "drifts": self.drifts,
            "initial_batch_size": self._initial_batch_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._weight, self._weight2 = state["weights"]
        self._sqr, self._sigma2 = list(state["sqr"]), list(state["sigma2"])
        self._first, self._second = list(state["moments"][:2]), list(state["moments"][2:])
        self.num_updates, self._cached, self._cached_groups = state["num_updates"], None, ()
        self.drifts = state.get("drifts", False)
        self._initial_batch_size = state.get("initial_batch_size", self._initial_batch_size)


def ratio_interval(a: float, b: float, aa: float, ab: float, bb: float) -> tuple[float, float]:
    """Return Fieller's interval of the ratio of two true values ≥ 0 estimated as `a` and `b`.

    `aa`, `ab`, `bb` are the covariances of the estimates times the squared number of standard errors. The set
    is (a − φ·b)² ≤ aa − 2φ·ab + φ²·bb, that is A·φ² − 2B·φ + C ≤ 0 with the letters below.

    A negative `b` counts as 0. Parts drawn without replacement are correlated negatively: once a small data
    set is learnt, |Ĝ|² is below 0 by more than its errors, and φ is large.
    """
    b = max(b, 0.0)
    A, B, C = b * b - bb, a * b - ab, a * a - aa
    if a <= 0 or C <= 0:
        # The numerator may be 0. There is still an upper end if the denominator is above 0.
        low = 0.0
    elif A == 0:
        low = C / (2 * B) if B > 0 else 0.0
    else:
        low = (B - math.sqrt(root)) / A if (root := B * B - A * C) >= 0 else 0.0
    root = B * B - A * C
    high = (B + math.sqrt(root)) / A if b > 0 and A > 0 and root >= 0 else math.inf
    return max(low, 0.0), max(high, low, 0.0)


def _student(z: float, degrees: float) -> float:
    """Return the quantile of Student's distribution that `z` is of the normal one (Cornish and Fisher)."""
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def _each(value: float | Sequence[float]) -> tuple[float, ...]:
    return (float(value),) if isinstance(value, int | float) else tuple(map(float, value))


def parts_of_consecutive(
    *, previous_sqr: float, previous_size: int, sqr: float, size: int, difference_sqr: float
) -> tuple[float, float]:
    """Return S and |ḡ|² of two consecutive steps' gradients, seen as C = 2 parts.

    For two parts S − M·|ḡ|² is n₁·n₂/(n₁ + n₂)·|g₁ − g₂|², which avoids the cancellation of the plain form.
    Pairs of steps must not overlap: the interval assumes independence.
    """
    parts_sum = previous_size * previous_sqr + size * sqr
    total = previous_size + size
    spread = previous_size * size / total * difference_sqr
    return parts_sum, (parts_sum - spread) / total
