"""The smoothed squared norm of whole steps' gradients: what steps of a single part add to the noise scale.

Legend: as in `noise_scale`. A step of one part has |ḡ|² but no σ̂². With E|ḡ|² = |G|² + σ²/M its norm still
measures |G|², once σ² is known from the few steps that have parts: |Ĝ|² = mean |ḡ|² − σ̂²·mean 1/M. Norms are
cheap and parts are not, and σ̂² needs few steps, for it is a sum over many coordinates.

|ḡ|² and σ̂² of one step are independent where gradients are normal (mean and variance of a sample), so the
variance of |Ĝ|² is that of the mean norm plus (mean 1/M)² times that of σ̂², and its covariance with σ̂² is
−(mean 1/M)·Var σ̂².
"""

from __future__ import annotations

from collections.abc import Sequence


class NormAverage:
    """Smoothed |ḡ|², by parameter group, and 1/M."""

    def __init__(self) -> None:
        # Σw, Σw², Σw/M; Σw·x by group; then Σw²·x and Σw²·x² of the sums over the groups, x = |ḡ|².
        self._weight = self._weight2 = self._inverse = 0.0
        self._sums: list[float] = []
        self._first = self._second = 0.0

    @property
    def is_empty(self) -> bool:
        """True before the first norm."""
        return not self._sums

    def add(self, mean_sqr: Sequence[float], size: int, keep: float) -> None:
        """Add a step of M = `size` examples; what was before counts `keep` of what it did."""
        if len(mean_sqr) != len(self._sums):
            # The first step, or a parameter group was added.
            self.load_state([0.0] * (5 + len(mean_sqr)))
        new, total = 1.0 - keep, sum(mean_sqr)
        self._weight = keep * self._weight + new
        self._weight2 = keep**2 * self._weight2 + new**2
        self._inverse = keep * self._inverse + new / size
        self._sums = [keep * old + new * x for old, x in zip(self._sums, mean_sqr, strict=True)]
        self._first = keep**2 * self._first + new**2 * total
        self._second = keep**2 * self._second + new**2 * total**2

    @property
    def means(self) -> list[float]:
        """The mean |ḡ|² of each parameter group."""
        return [value / self._weight for value in self._sums]

    @property
    def inverse_size(self) -> float:
        """The mean 1/M."""
        return self._inverse / self._weight

    @property
    def num_effective(self) -> float:
        """The effective number of equally weighted steps."""
        return self._weight**2 / self._weight2

    @property
    def variance(self) -> float:
        """The variance of the mean norm of all groups; more than one effective step is needed."""
        mean, num = sum(self.means), self.num_effective
        spread = max(self._second - 2 * mean * self._first + mean**2 * self._weight2, 0.0)
        return spread * num / (num - 1.0) / self._weight**2

    def state(self) -> list[float]:
        """Return plain values for a checkpoint."""
        return [self._weight, self._weight2, self._inverse, self._first, self._second, *self._sums]

    def load_state(self, state: Sequence[float]) -> None:
        """Restore what `state` returned."""
        self._weight, self._weight2, self._inverse, self._first, self._second, *self._sums = state
