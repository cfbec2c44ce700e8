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
    """Hold what a rule may depend on in one step, for one parameter group.

    Args:
        scale: M/M0, how much larger the global batch is than the initial one.
        gain: The progress of the step in units of M0, of the group's own gradients.
        progress: The training so far in units of M0, exact over restarts.
        batch_size: M, in examples.

    Examples:
        >>> moment = pollux.ScalingMoment(scale=4.0, gain=3.0, progress=100.0, batch_size=128)
        >>> pollux.SqrtScale().factor_at(moment)
        2.0
    """

    scale: float
    gain: float
    progress: float
    batch_size: int


class ScalingRule(ABC):
    """Turn a batch scale into the factor by which learning rates are multiplied for one step.

    The optimizer's own learning rates, and so the LR scheduler's, are unchanged between steps. A rule must
    return the same on every replica, so it may depend on its arguments only.

    Examples:
        >>> class AtMost4(pollux.ScalingRule):
        ...     def factor(self, *, scale, gain):
        ...         return min(gain, 4.0)
        >>> model = pollux.AdaptiveDataParallel(model, optimizer, scaling_rule=AtMost4())
    """

    @abstractmethod
    def factor(self, *, scale: float, gain: float) -> float:
        """Return the learning rate's factor for a batch.

        It is called for each parameter group, with the gain of its own gradients.

        Args:
            scale: M/M0, how much larger the global batch is than the initial one.
            gain: How many steps of the initial batch one of this batch is worth, between 1 and `scale`.
        """

    def factor_at(self, moment: ScalingMoment) -> float:
        """Return the factor at one moment of the training. Override it where a rule depends on more.

        Args:
            moment: Scale, gain, progress and batch size of the step.

        Examples:
            >>> class Later(pollux.SqrtScale):
            ...     def factor_at(self, moment):
            ...         return super().factor_at(moment) if moment.progress > 1000 else 1.0
        """
        return self.factor(scale=moment.scale, gain=moment.gain)


class AdaScale(ScalingRule):
    """Multiply the learning rate by the gain itself (AdaScale SGD; the paper's rule).

    Examples:
        >>> pollux.AdaScale().factor(scale=4.0, gain=3.0)
        3.0
    """

    def factor(self, *, scale: float, gain: float) -> float:
        return gain


class AdamScale(ScalingRule):
    """Multiply the learning rate by the square root of the gain, for optimizers that normalise gradients.

    Examples:
        >>> pollux.AdamScale().factor(scale=16.0, gain=9.0)
        3.0
    """

    def factor(self, *, scale: float, gain: float) -> float:
        return math.sqrt(gain)


class LinearScale(ScalingRule):
    """Multiply the learning rate by the batch's scale.

    Examples:
        >>> pollux.LinearScale().factor(scale=4.0, gain=3.0)
        4.0
    """

    def factor(self, *, scale: float, gain: float) -> float:
        return scale


class SqrtScale(ScalingRule):
    """Multiply the learning rate by the square root of the batch's scale.

    It is the default for Adam-like optimizers.

    Examples:
        >>> pollux.SqrtScale().factor(scale=4.0, gain=3.0)
        2.0
    """

    def factor(self, *, scale: float, gain: float) -> float:
        return math.sqrt(scale)


class LEGWScale(ScalingRule):
    """Multiply by the square root of the batch's scale after a linear warm-up (You et al., 2019).

    The warm-up is longer by the scale. It is counted in progress, whose unit is M0 examples, so it goes on
    over restarts and changes of the batch.

    Args:
        base_warmup_epochs: The epochs of the warm-up at M0; at M, it is `scale` times as long.
        data_size: The examples of an epoch.

    Raises:
        UsageError: An argument is below its least value, 0 epochs or 1 example.

    Examples:
        >>> rule = pollux.LEGWScale(base_warmup_epochs=1, data_size=6400)
        >>> moment = pollux.ScalingMoment(scale=4.0, gain=4.0, progress=96.0, batch_size=128)
        >>> rule.factor_at(moment)  # after 3200 of 25600 examples
        0.25
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
    """Leave the learning rate as it is: a factor of 1.

    Examples:
        >>> pollux.NoScale().factor(scale=4.0, gain=3.0)
        1.0
    """

    def factor(self, *, scale: float, gain: float) -> float:
        return 1.0


_NORMALISING = ("adam", "adagrad", "adadelta", "rmsprop", "lamb", "lion", "adopt")


def normalises(optimizer_name: str) -> bool:
    """Return whether optimizers of this name divide gradients by their size (Adam-like)."""
    return any(name in optimizer_name.lower() for name in _NORMALISING)


def default_rule(optimizer_name: str) -> ScalingRule:
    """Return the square root for optimizers that normalise gradients (Adam-like), else AdaScale."""
    return SqrtScale() if normalises(optimizer_name) else AdaScale()
