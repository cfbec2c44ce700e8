"""Measure the training loop's steps by timestamps, and compute the micro-batches' times once these are known.

A step lasts from the end of the previous step to its own end. So it includes the time of data loading, which
is also measured separately, on the host. Checkpoints, validation and the first steps of a process or after a
new batch size are not measured.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pollux_slurm.agent.measure.profile import MeasuredStep
from pollux_slurm.torch.measurement.timestamps import Timestamp

# Slow steps after a start or a change: caches, allocators, DDP's regrouped buckets, restarted workers.
_WARM_UP_STEPS = 2
_MAX_UNRESOLVED = 64
# The least time from one measured step to the next.
_MIN_STAMP_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True)
class _TimedStep:
    marks: tuple[Timestamp, ...]
    local_end: Timestamp
    sync_end: Timestamp
    atomic_batch_size: int
    num_examples: int
    data_s: float

    def is_known(self) -> bool:
        return self.marks[-1].is_known() and self.sync_end.is_known()

    def measure(self) -> MeasuredStep:
        durations_s = [
            late.seconds_since(early) for early, late in zip(self.marks, self.marks[1:], strict=False)
        ]
        # How long the last micro-batch waited for other replicas after its own gradients were computed.
        sync_s = max(self.sync_end.seconds_since(self.local_end), 0.0)
        alone = [*durations_s[:-1], max(durations_s[-1] - sync_s, 0.0)]
        return MeasuredStep(
            atomic_batch_size=self.atomic_batch_size,
            num_examples=self.num_examples,
            micro_batch_s=sum(alone) / len(alone),
            last_time_s=durations_s[-1],
            total_s=sum(durations_s),
            data_s=self.data_s,
        )


class StepClock:
    """Collects the timestamps of one training loop's steps.

    `make_timestamp` takes one of the device that trains; None on ranks that measure nothing.
    """

    def __init__(
        self,
        make_timestamp: Callable[[], Timestamp] | None,
        *,
        monotonic: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.make_timestamp, self._monotonic = make_timestamp, monotonic
        self._is_stamping, self._next_at = False, -math.inf
        self._requested_at: float | None = None
        self._data_s = 0.0
        self._marks: list[Timestamp] = []
        self._unresolved: deque[_TimedStep] = deque(maxlen=_MAX_UNRESOLVED)
        self._num_to_skip = _WARM_UP_STEPS

    def begin_run(self, make_timestamp: Callable[[], Timestamp] | None) -> None:
        """Forget steps whose times are not known yet: they belong to another run."""
        self.make_timestamp = make_timestamp
        self._is_stamping, self._marks = False, []
        self._unresolved.clear()
        self.skip_steps()

    def skip_steps(self, *, num_steps: int = _WARM_UP_STEPS) -> None:
        """Do not measure the coming steps: something else than training changes their times."""
        self._num_to_skip = max(self._num_to_skip, num_steps)

    def start(self) -> None:
        """Begin a step here: a loop starts, or goes on after an interruption."""
        self._begin_step(())
        self.batch_requested()

    def _begin_step(self, ends: Sequence[Timestamp]) -> None:
        """Decide whether the coming step is measured; `ends` are the previous step's timestamps, if any."""
        self._data_s = 0.0
        now = self._monotonic()
        self._is_stamping = self.make_timestamp is not None and now >= self._next_at
        if self.make_timestamp is not None and self._is_stamping:
            self._next_at = now + _MIN_STAMP_INTERVAL_S
            self._marks = [ends[-1] if ends else self.make_timestamp()]

    def stamp(self) -> Timestamp | None:
        """Return a timestamp of the device; None in a step that is not measured."""
        return self.make_timestamp() if self.make_timestamp is not None and self._is_stamping else None

    def batch_requested(self) -> None:
        """Begin waiting for the next batch."""
        self._requested_at = self._monotonic()

    def batch_ready(self) -> None:
        """End waiting for the batch."""
        if self._requested_at is not None:
            self._data_s += self._monotonic() - self._requested_at
            self._requested_at = None

    def micro_batch_done(self) -> None:
        """Take the time of a micro-batch's end."""
        if (mark := self.stamp()) is not None:
            self._marks.append(mark)
        self.batch_requested()

    def step_done(
        self,
        *,
        local_end: Timestamp | None,
        sync_end: Timestamp | None,
        atomic_batch_size: int,
        num_examples: int,
        is_typical: bool,
    ) -> None:
        """End the step. Without the reducer's timestamps, or if not typical, it is not measured."""
        marks, data_s = tuple(self._marks) if self._is_stamping else (), self._data_s
        self._begin_step(marks)
        if self._num_to_skip > 0:
            self._num_to_skip -= 1
        elif is_typical and local_end is not None and sync_end is not None and len(marks) > 1:
            self._unresolved.append(
                _TimedStep(marks, local_end, sync_end, atomic_batch_size, num_examples, data_s)
            )

    def measured(self) -> list[MeasuredStep]:
        """Return the steps whose times are known by now, each once."""
        known = []
        while self._unresolved and self._unresolved[0].is_known():
            known.append(self._unresolved.popleft().measure())
        return known
