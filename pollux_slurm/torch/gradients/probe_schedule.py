"""In which steps of one replica gradient noise is measured, where a measurement is more work than the step.

Legend: c the cost of a measurement, in steps; n the steps so far; N the measurements so far.

N·c ≤ n/100 keeps the cost at 1 %, but leaves the first hundred steps without any. The first thousand may
spend their ten steps early instead: N·c ≤ 10·(n/1000)^(1/3). That is most where estimates change most.
"""

from __future__ import annotations

_SHARE = 0.01
_FIRST_STEPS = 1000
# A split or a second backward pass about doubles a step at most.
_UNKNOWN_COST = 1.0
# Where the cost is lost in the noise of step times.
_LEAST_COST = 0.02
_LEAST_PERIOD = 4


def budget(num_steps: int) -> float:
    """Return for how many steps' time measuring may have taken, after so many steps."""
    if num_steps < _FIRST_STEPS:
        return float(_SHARE * _FIRST_STEPS * (num_steps / _FIRST_STEPS) ** (1 / 3))
    return _SHARE * num_steps


class ProbeSchedule:
    """Decides when to measure. `cost` is c as it was measured, None before."""

    def __init__(self) -> None:
        self.cost: float | None = None
        self.num_steps = self.num_probes = 0
        self._last = -_LEAST_PERIOD

    @property
    def is_due(self) -> bool:
        """True where the coming step may be measured."""
        cost = _UNKNOWN_COST if self.cost is None else max(self.cost, _LEAST_COST)
        is_spaced = self.num_steps - self._last >= _LEAST_PERIOD
        return is_spaced and (self.num_probes + 1) * cost <= budget(self.num_steps)

    def add_step(self, *, is_probe: bool) -> None:
        """Count a step."""
        if is_probe:
            self.num_probes, self._last = self.num_probes + 1, self.num_steps
        self.num_steps += 1

    def state(self) -> list[int]:
        """Return plain values for a checkpoint."""
        return [self.num_steps, self.num_probes]

    def load_state(self, state: list[int]) -> None:
        """Restore what `state` returned."""
        self.num_steps, self.num_probes = state
        self._last = self.num_steps - _LEAST_PERIOD
