"""Rules by which the learning rate follows the batch size. A user's own rule is a subclass of `ScalingRule`.

scale = M/M0 ≥ 1 is how much larger the global batch is than the initial one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from pollux_slurm.errors import UsageError
from pollux_slurm.model import GradientStatistics


def gain(statistics: GradientStatistics | None, scale: float) -> float:
    """Return AdaScale's gain r = (var + sqr)/(var/scale + sqr), between 1 and scale (Pollux eq. 5).

    1 while nothing is known, or when noise has left no positive denominator. The scalar form of
    `pollux_slurm.goodput.gain`, which needs scipy; here every rank calls it.
    """
    if statistics is None:
        return 1.0
    denominator = statistics.var / scale + statistics.sqr
    return (statistics.var + statistics.sqr) / denominator if denominator > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingMoment:
    """What a rule may depend on in one step, for one parameter group.

    `scale` is M/M0, `gain` that of the group's own gradients, `progress` the training so far in
    units of M0, exact over restarts; `batch_size` is M in examples.
    """

    scale: float
    gain: float
    progress: float
    batch_size: int


class ScalingRule(ABC):
    """Turns a batch scale into the factor by which learning rates are multiplied for one step.

    The optimizer's own learning rates, and so the LR scheduler's, are unchanged between steps. A rule must
    return the same on every replica, so it may depend on its arguments only.
    """

    @abstractmethod
    def factor(self, *, scale: float, gain: float) -> float:
        """Return the factor for a batch `scale` times the initial one, worth `gain` initial steps.

        Called for each parameter group, with the gain of its own gradients.
        """

    def factor_at(self, moment: ScalingMoment) -> float:
        """Return the factor at one moment of the training. Override it where a rule depends on more."""
        return self.factor(scale=moment.scale, gain=moment.gain)


class AdaScale(ScalingRule):
    """The gain itself (AdaScale SGD; the paper's rule)."""

    def factor(self, *, scale: float, gain: float) -> float:
        return gain


class AdamScale(ScalingRule):
    """The square root of the gain: AdaScale for optimizers that normalise gradients."""

    def factor(self, *, scale: float, gain: float) -> float:
        return math.sqrt(gain)


class LinearScale(ScalingRule):
    """Proportional to the batch."""

    def factor(self, *, scale: float, gain: float) -> float:
        return scale


class SqrtScale(ScalingRule):
    """The square root of the batch; the default for Adam-like optimizers."""

    def factor(self, *, scale: float, gain: float) -> float:
        return math.sqrt(scale)


class LEGWScale(ScalingRule):
    """The square root of the batch, after a linear warm-up that is as many times longer (You et al., 2019).

    At M0 the warm-up takes `base_warmup_epochs` epochs of `data_size` examples, at M scale times as many. It
    is counted in progress, whose unit is M0 examples, so it goes on over restarts and changes of the batch.
    """

    def __init__(self, base_warmup_epochs: float, data_size: int) -> None:
        if not (base_warmup_epochs >= 0 and math.isfinite(base_warmup_epochs)) or data_size < 1:
            raise UsageError(
                "LEGWScale needs warm-up epochs ≥ 0 and a data size ≥ 1, "
                f"not {base_warmup_epochs} and {data_size}"
            )
        self._examples = base_warmup_epochs * data_size

    def factor(self, *, scale: float, gain: float) -> float:
        return math.sqrt(scale)

    def factor_at(self, moment: ScalingMoment) -> float:
        length = self._examples * moment.scale
        # The present step counts, so that the first one has a learning rate above 0.
        done = (moment.progress + moment.gain) * moment.batch_size / moment.scale
        full = self.factor(scale=moment.scale, gain=moment.gain)
        return full * min(done / length, 1.0) if length > 0 else full


class NoScale(ScalingRule):
    """A factor of 1: the learning rate stays as it is."""

    def factor(self, *, scale: float, gain: float) -> float:
        return 1.0


_NORMALISING = ("adam", "adagrad", "adadelta", "rmsprop", "lamb", "lion", "adopt")


def normalises(optimizer_name: str) -> bool:
    """Return whether optimizers of this name divide gradients by their size (Adam-like)."""
    return any(name in optimizer_name.lower() for name in _NORMALISING)


def default_rule(optimizer_name: str) -> ScalingRule:
    """Return the square root for optimizers that normalise gradients (Adam-like), else AdaScale."""
    return SqrtScale() if normalises(optimizer_name) else AdaScale()
