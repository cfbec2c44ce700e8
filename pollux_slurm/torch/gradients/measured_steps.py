"""In which steps gradient noise is measured, and by which parts of a step.

Norms of several parts are measured in so many steps at first, then once in a period: they read the whole
gradient once, and several times where it is preconditioned. One replica with one micro-batch has one part.
There a measurement is more work than the step.

Legend: n the steps so far; N the measurements so far.

A measurement costs half a step to a whole one: a second backward pass or another micro-batch, and norms in
the optimizer's metric. N ≤ n/100 therefore keeps the cost at 1 % or less, but gives the first estimate late.
The first thousand steps may spend their ten earlier, as N ≤ 10·(n/1000)^(2/3). Of a small model, whose steps
of one or two milliseconds are Python's time, a measurement costs up to 1.4 steps: there N ≤ 8·(n/1000)^(2/3).
With a lower exponent the later of them would stand for so many steps that they alone
decided the estimate. No time is measured, so that the same training measures the same steps on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pollux_slurm.torch.data.micro_batches import MicroBatchPlan
from pollux_slurm.torch.gradients.consecutive_steps import ConsecutiveSteps
from pollux_slurm.torch.gradients.half_batches import HalfBatches
from pollux_slurm.torch.gradients.preconditioning import GradientMetric

_ALWAYS_MEASURED = 32
_PERIOD = 4
_PERIOD_PRECONDITIONED = 8

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


class MeasuredSteps:
    """Decides whether a model's step is measured, and how: by micro-batches, by halves, or by two steps.

    `measures` and `by_halves` are of the step under way. Where batches are split to measure noise, which
    `is_by_splits` tells, `split_schedule` says when, else `whole_schedule`.
    """

    def __init__(self, metric: GradientMetric, parameters: Sequence[torch.Tensor]) -> None:
        self._metric = metric
        self.consecutive = ConsecutiveSteps(metric)
        numel = sum(parameter.numel() for parameter in parameters)
        self.halves, self.whole_schedule = HalfBatches(metric, parameters), ProbeSchedule(numel)
        self.split_schedule, self.is_by_splits = ProbeSchedule(numel), False
        # Whether the global batch may vary: else its noise is worth no work that the step does without.
        self.may_vary = False
        self.accumulates_manually = False
        self.measures = self.by_halves = False
        self._num_steps = self._num_measured = 0

    def begin_manual_accumulation(self) -> None:
        """Take note that the script accumulates gradients: parts of a step are then its micro-batches."""
        self.accumulates_manually, self.by_halves = True, False
        self.halves.cancel()

    def begin_step(self) -> None:
        """Count a step."""
        self._num_steps += 1
        if self.halves.is_measuring:
            self.halves.cancel()

    def choose(self, plan: MicroBatchPlan | None, *, is_single_part: bool) -> None:
        """Decide about the step that begins with the micro-batch `plan`; None outside of a loop."""
        self.measures = self.by_halves = False
        if plan is None:
            pass
        elif self.accumulates_manually or not is_single_part:
            is_due = plan.is_probe or self._is_due(is_single_part=is_single_part)
            self.measures = is_due and self._metric.begin_step()
            self._num_measured += self.measures
        elif not self.is_by_splits:
            self._choose_for_single_part(plan)
        if self.consecutive.is_kept and not (self.measures and is_single_part):
            self.consecutive.forget()

    def _choose_for_single_part(self, plan: MicroBatchPlan) -> None:
        """Decide whether a step of one part is measured, by halves or as one of two consecutive ones."""
        self.by_halves = self.may_vary and self.halves.is_possible and plan.size > 1
        is_second = self.consecutive.is_kept and not self.by_halves
        self.measures = (is_second or self.whole_schedule.is_due) and self._metric.begin_step()
        self.whole_schedule.add_step(is_probe=self.measures and not is_second)
        if self.measures and self.by_halves:
            self.halves.begin_step(plan.size)

    def _is_due(self, *, is_single_part: bool) -> bool:
        if self._num_measured < _ALWAYS_MEASURED:
            return True
        period = _PERIOD_PRECONDITIONED if self._metric.preconditions else _PERIOD
        if is_single_part:
            # The script may add up several batches, or not: then two consecutive steps are compared.
            return self._num_steps % (2 * period) < 2
        return self._num_steps % period == 0

    def state(self) -> list[int]:
        """Return the counters that decide which steps are measured, for a checkpoint."""
        return [self._num_steps, self._num_measured]

    def load_state(self, state: Sequence[int]) -> None:
        """Restore what `state` returned."""
        self._num_steps, self._num_measured = state
