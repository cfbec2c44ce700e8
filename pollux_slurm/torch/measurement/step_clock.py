"""Step times of the training loop, taken as stamps and turned into T_grad and T_iter once they are known.

A step's clock runs from the end of the step before to its own end, so the time that data loading adds is in
it (and measured apart, on the host); checkpoints, validation and the first steps of a process (or after a new
batch size) are not.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pollux_slurm.agent.measure.profile import MeasuredStep
from pollux_slurm.torch.measurement.timestamps import Instant

# Unsteady steps after a start or a change: caches, allocators, DDP's regrouped buckets, restarted workers.
_WARM_UP_STEPS = 2
_MAX_UNRESOLVED = 64
# From one stamped step to the next at least.
_SPACING_S = 0.02


@dataclass(frozen=True, slots=True)
class _Stamped:
    marks: tuple[Instant, ...]
    local_end: Instant
    sync_end: Instant
    atomic_batch_size: int
    num_examples: int
    data_s: float

    def is_known(self) -> bool:
        return self.marks[-1].is_known() and self.sync_end.is_known()

    def measure(self) -> MeasuredStep:
        passes = [late.seconds_since(early) for early, late in zip(self.marks, self.marks[1:], strict=False)]
        # What the last pass waited for other replicas after its own gradients were done.
        sync_s = max(self.sync_end.seconds_since(self.local_end), 0.0)
        alone = [*passes[:-1], max(passes[-1] - sync_s, 0.0)]
        return MeasuredStep(
            atomic_batch_size=self.atomic_batch_size,
            num_examples=self.num_examples,
            grad_time_s=sum(alone) / len(alone),
            iter_time_s=passes[-1],
            total_s=sum(passes),
            data_s=self.data_s,
        )


class StepClock:
    """Collects the stamps of one training loop's steps. `instant` stamps the device that trains; it is None
    where nobody wants to know.
    """

    def __init__(
        self, instant: Callable[[], Instant] | None, *, monotonic: Callable[[], float] = time.perf_counter
    ) -> None:
        self.instant, self._monotonic = instant, monotonic
        self._is_stamping, self._next_at = False, -math.inf
        self._wanted_at: float | None = None
        self._data_s = 0.0
        self._marks: list[Instant] = []
        self._unresolved: deque[_Stamped] = deque(maxlen=_MAX_UNRESOLVED)
        self._unsteady = _WARM_UP_STEPS

    def disturb(self, *, num_steps: int = _WARM_UP_STEPS) -> None:
        """Leave out the coming steps: something but training changes their times."""
        self._unsteady = max(self._unsteady, num_steps)

    def start(self) -> None:
        """Begin timing here: a loop starts, or goes on after an interruption."""
        self._begin_step(())
        self.batch_wanted()

    def _begin_step(self, ends: Sequence[Instant]) -> None:
        """Decide whether the coming step is stamped; `ends` are the stamps of the one before, if it was."""
        self._data_s = 0.0
        now = self._monotonic()
        self._is_stamping = self.instant is not None and now >= self._next_at
        if self.instant is not None and self._is_stamping:
            self._next_at = now + _SPACING_S
            self._marks = [ends[-1] if ends else self.instant()]

    def stamp(self) -> Instant | None:
        """Return this moment of the device; None in a step that is not stamped."""
        return self.instant() if self.instant is not None and self._is_stamping else None

    def batch_wanted(self) -> None:
        """Tell that the loop asks for its next batch."""
        self._wanted_at = self._monotonic()

    def batch_ready(self) -> None:
        """Tell that the batch is there."""
        if self._wanted_at is not None:
            self._data_s += self._monotonic() - self._wanted_at
            self._wanted_at = None

    def pass_done(self) -> None:
        """Stamp the end of a pass."""
        if (mark := self.stamp()) is not None:
            self._marks.append(mark)
        self.batch_wanted()

    def step_done(
        self,
        *,
        local_end: Instant | None,
        sync_end: Instant | None,
        atomic_batch_size: int,
        num_examples: int,
        is_typical: bool,
    ) -> None:
        """Close the step; without the reducer's stamps, or when not typical, it does not count."""
        marks, data_s = tuple(self._marks) if self._is_stamping else (), self._data_s
        self._begin_step(marks)
        if self._unsteady > 0:
            self._unsteady -= 1
        elif is_typical and local_end is not None and sync_end is not None and len(marks) > 1:
            self._unresolved.append(
                _Stamped(marks, local_end, sync_end, atomic_batch_size, num_examples, data_s)
            )

    def measured(self) -> list[MeasuredStep]:
        """Return the steps whose times are known by now, once each."""
        known = []
        while self._unresolved and self._unresolved[0].is_known():
            known.append(self._unresolved.popleft().measure())
        return known
