"""The gradient noise scale from independent gradient estimates of any sizes (Pollux section 3.1).

Legend: C parts; part c is the mean gradient g_c over n_c examples; M = Σ n_c; ḡ = Σ (n_c/M)·g_c; G the true
gradient; σ² the trace of the covariance of one example's gradient.

    E|g_c|² = |G|² + σ²/n_c   and   E|ḡ|² = |G|² + σ²/M,   so with S = Σ n_c·|g_c|²:
    E[S − M·|ḡ|²] = (C − 1)·σ²,

which gives the unbiased pair  σ̂² = (S − M·|ḡ|²)/(C − 1)  and  |Ĝ|² = |ḡ|² − σ̂²/M  for any n_c. Parts are the
passes of all replicas; with one replica and one pass, the gradients of two consecutive steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pollux_slurm.model import GradientStatistics

# Examples, in units of M0, after which an old estimate counts 1/e.
_HORIZON = 500.0


class NoiseEstimator:
    """Smoothed |G|² and σ², for one initial batch size M0. Plain floats: nothing here touches a device."""

    def __init__(self, *, horizon_batches: float = _HORIZON) -> None:
        self._horizon_batches = horizon_batches
        self._initial_batch_size = 1
        self._weight = self._sqr = self._sigma2 = 0.0
        self.num_updates = 0

    def set_initial_batch_size(self, initial_batch_size: int) -> None:
        """Tell M0, in which statistics are expressed and the horizon is measured."""
        self._initial_batch_size = initial_batch_size

    def update(
        self, *, parts_sum: float, mean_sqr: float, num_examples: int, num_parts: int, span: int | None = None
    ) -> bool:
        """Take in one step: S, |ḡ|², M and C. False, without effect, if it says nothing.

        `span` is how many examples the step stands for, where not each step is measured (M unless given).
        """
        if num_parts < 2 or num_examples < 1 or not (math.isfinite(parts_sum) and math.isfinite(mean_sqr)):
            return False
        sigma2 = (parts_sum - num_examples * mean_sqr) / (num_parts - 1)
        sqr = mean_sqr - sigma2 / num_examples
        keep = math.exp(-(span or num_examples) / (self._horizon_batches * self._initial_batch_size))
        # Weight and sums are smoothed alike; their ratio has no bias towards the zero they began with.
        self._weight = keep * self._weight + (1.0 - keep)
        self._sqr = keep * self._sqr + (1.0 - keep) * sqr
        self._sigma2 = keep * self._sigma2 + (1.0 - keep) * sigma2
        self.num_updates += 1
        return True

    def statistics(self) -> GradientStatistics | None:
        """Return |G|² and tr Σ at batch M0; None before the first update.

        Noise can make an estimate negative; no true value is, so it is then 0.
        """
        if self.num_updates == 0:
            return None
        return GradientStatistics(
            sqr=max(self._sqr / self._weight, 0.0),
            var=max(self._sigma2 / self._weight, 0.0) / self._initial_batch_size,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {
            "weight": self._weight,
            "sqr": self._sqr,
            "sigma2": self._sigma2,
            "num_updates": self.num_updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._weight, self._sqr, self._sigma2 = state["weight"], state["sqr"], state["sigma2"]
        self.num_updates = state["num_updates"]


def parts_of_consecutive(
    *, previous_sqr: float, previous_size: int, sqr: float, size: int, difference_sqr: float
) -> tuple[float, float]:
    """Return S and |ḡ|² of two consecutive steps' gradients, seen as C = 2 parts.

    For two parts S − M·|ḡ|² is n₁·n₂/(n₁ + n₂)·|g₁ − g₂|², which does not cancel as the plain form would.
    """
    parts_sum = previous_size * previous_sqr + size * sqr
    total = previous_size + size
    spread = previous_size * size / total * difference_sqr
    return parts_sum, (parts_sum - spread) / total
