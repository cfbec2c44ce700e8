"""How the learning rate follows the batch size. Own rules are subclasses of `ScalingRule`.

scale = M/M0 ≥ 1 is how much larger the global batch is than the initial one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from pollux_slurm.model import GradientStatistics


def gain(statistics: GradientStatistics | None, scale: float) -> float:
    """Return AdaScale's gain r = (var + sqr)/(var/scale + sqr), between 1 and scale (Pollux eq. 5).

    1 while nothing is known, or when noise has left no positive denominator. The scalar form of
    `pollux_slurm.goodput.gain`, here because every rank needs it and none but one needs scipy.
    """
    if statistics is None:
        return 1.0
    denominator = statistics.var / scale + statistics.sqr
    return (statistics.var + statistics.sqr) / denominator if denominator > 0 else 1.0


class ScalingRule(ABC):
    """Turns a batch scale into the factor by which every learning rate is multiplied for one step.

    The optimizer's own learning rates, and so the LR scheduler's, are left as they are between steps.
    """

    @abstractmethod
    def factor(self, *, scale: float, gain: float) -> float:
        """Return the factor for a batch `scale` times the initial one, worth `gain` initial steps."""


class AdaScale(ScalingRule):
    """The gain itself (AdaScale SGD; the paper's rule)."""

    def factor(self, *, scale: float, gain: float) -> float:
        return gain


class LinearScale(ScalingRule):
    """Proportional to the batch."""

    def factor(self, *, scale: float, gain: float) -> float:
        return scale


class SqrtScale(ScalingRule):
    """The square root of the batch; the default for Adam-like optimizers."""

    def factor(self, *, scale: float, gain: float) -> float:
        return math.sqrt(scale)


class NoScale(ScalingRule):
    """The learning rate stays."""

    def factor(self, *, scale: float, gain: float) -> float:
        return 1.0


def default_rule(optimizer_name: str) -> ScalingRule:
    """Return the square root for optimizers that normalise gradients (Adam-like), else AdaScale."""
    adaptive = ("adam", "adagrad", "adadelta", "rmsprop", "lamb", "lion", "adopt")
    return SqrtScale() if any(name in optimizer_name.lower() for name in adaptive) else AdaScale()
