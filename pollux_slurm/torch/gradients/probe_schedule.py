"""In which steps of one replica gradient noise is measured, where a measurement is more work than the step.

Legend: n the steps so far; N the measurements so far.

A measurement costs half a step to a whole one: a second backward pass or another micro-batch, and norms in
the optimizer's metric. N ≤ n/100 therefore keeps the cost at 1 % or less, but gives the first estimate late.
The first thousand steps may spend their ten earlier, as N ≤ 10·(n/1000)^(2/3). Of a small model, whose steps
of one or two milliseconds are Python's time, a measurement costs up to 1.4 steps: there N ≤ 8·(n/1000)^(2/3).
With a lower exponent the later of them would stand for so many steps that they alone
decided the estimate. No time is measured, so that the same training measures the same steps on any machine.
"""

from __future__ import annotations

_FIRST_STEPS = 1000
# Parameters below which a model is small, and its part of the share.
_SMALL_NUMEL, _SMALL_PART = 100_000, 0.8


class ProbeSchedule:
    """Decides when to measure a model of `numel` parameters.

    In at most `share` of the steps, over the first thousand and over all; of a small model less.
    """

    share = 0.01

    def __init__(self, numel: int) -> None:
        self.num_steps = self.num_probes = 0
        self._part = _SMALL_PART if numel < _SMALL_NUMEL else 1.0

    @property
    def is_due(self) -> bool:
        """True where the coming step may be measured."""
        steps = self.num_steps
        if steps < _FIRST_STEPS:
            steps = _FIRST_STEPS * (steps / _FIRST_STEPS) ** (2 / 3)
        return self.num_probes + 1 <= self.share * self._part * steps

    def add_step(self, *, is_probe: bool) -> None:
        """Count a step."""
        self.num_steps, self.num_probes = self.num_steps + 1, self.num_probes + is_probe

    def state(self) -> list[int]:
        """Return plain values for a checkpoint."""
        return [self.num_steps, self.num_probes]

    def load_state(self, state: list[int]) -> None:
        """Restore what `state` returned."""
        self.num_steps, self.num_probes = state
