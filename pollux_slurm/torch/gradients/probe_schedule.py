"""In which steps of one replica gradient noise is measured, where a measurement is more work than the step.

Legend: n the steps so far; N the measurements so far.

A backward pass is two thirds of forward and backward, and a batch in two halves costs less than another one.
N ≤ 0.015·n therefore keeps the cost at 1 %, but leaves the first steps without any. The first thousand may
spend their fifteen early instead: N ≤ 15·(n/1000)^(1/3). That is most where estimates change most. No time is
measured, so that the same training measures the same steps on any machine.
"""

from __future__ import annotations

_FIRST_STEPS = 1000


class ProbeSchedule:
    """Decides when to measure: in at most `share` of the steps, over the first thousand and over all."""

    share = 0.015

    def __init__(self) -> None:
        self.num_steps = self.num_probes = 0

    @property
    def is_due(self) -> bool:
        """True where the coming step may be measured."""
        return self.num_probes + 1 <= self.allowed(self.num_steps)

    def allowed(self, num_steps: int) -> float:
        """Return how many of the first `num_steps` may have been measured."""
        early: float = _FIRST_STEPS * (num_steps / _FIRST_STEPS) ** (1 / 3)
        return self.share * max(early, num_steps)

    def add_step(self, *, is_probe: bool) -> None:
        """Count a step."""
        self.num_steps, self.num_probes = self.num_steps + 1, self.num_probes + is_probe

    def state(self) -> list[int]:
        """Return plain values for a checkpoint."""
        return [self.num_steps, self.num_probes]

    def load_state(self, state: list[int]) -> None:
        """Restore what `state` returned."""
        self.num_steps, self.num_probes = state
