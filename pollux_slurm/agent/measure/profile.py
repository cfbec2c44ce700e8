"""Measured step times of one job, by situation, kept small and safe to read from another thread."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Per situation, the newest of so many steps count: enough for a median, few enough to forget a changed node.
_NEWEST = 64
# Of steps that follow each other faster than this, one in this time is kept. Minutes count then, over all
# visits to a situation, not the last seconds: what keeps a machine busy for a moment, such as a job that
# starts, would else make one size look slow until the next one is measured at a bad moment, and the job move
# to and fro between them.
_SPACING_S = 5.0
# A median of this many steps counts in full.
_FULL_WEIGHT_AT = 8
# and one of this many is not what a busy moment made of it: they are the steps of some two minutes.
_CONFIRMED_AT = 32
_MAX_SITUATIONS = 256
# A situation that was last measured so long before the latest one counts half: nodes and their neighbours
# change. It never counts for less than a part, because for its size there may be nothing newer.
_HALF_LIFE_S = 12 * 3600.0
_LEAST_FRESHNESS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One step's times in seconds, and the atomic batch size they hold for.

    `grad_time_s` is the mean time of a pass without synchronisation, `iter_time_s` that of the last pass with
    it, `total_s` that of the whole step over `num_examples` examples of all replicas. `data_s` is how long
    the host waited for the step's batches: all of it is in the other times on a CPU, on a GPU only what the
    device was idle for.
    """

    atomic_batch_size: int
    num_examples: int
    grad_time_s: float
    iter_time_s: float
    total_s: float
    data_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileKey:
    """Where a step time was measured: N nodes, K replicas, atomic batch size m, on GPUs of one type.

    `gpu_type` is what the driver calls them, None without a GPU.
    """

    num_nodes: int
    num_gpus: int
    atomic_batch_size: int
    gpu_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Typical times of one situation, in seconds. `count` is how many steps they are the median of.

    `grad_time_s` is a pass without synchronisation, `iter_time_s` the last pass of a step with it; what a
    slow loader adds is in both. `freshness` is 1 for the situation measured last, less for one measured long
    before it.
    """

    key: ProfileKey
    grad_time_s: float
    iter_time_s: float
    count: int
    freshness: float = 1.0

    @property
    def weight(self) -> float:
        return min(self.count, _FULL_WEIGHT_AT) / _FULL_WEIGHT_AT * self.freshness

    @property
    def confirmed(self) -> bool:
        """Whether minutes were measured, not a moment that may have been a bad one."""
        return self.count >= _CONFIRMED_AT


@dataclass(slots=True)
class _Record:
    """The newest steps of one situation, as (grad, iter) seconds, and when the last one kept was."""

    steps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_NEWEST))
    last_at: float = 0.0

    def is_due(self, now: float) -> bool:
        """Tell whether a step now is kept: each of the first, then one in a while; clocks may be set back."""
        return len(self.steps) < _FULL_WEIGHT_AT or not 0.0 <= now - self.last_at < _SPACING_S


class StepProfile:
    """All step times a job has measured, its earlier runs included. Medians, so outliers do not count.

    `now` is the time of day, which goes on over restarts.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._records: dict[ProfileKey, _Record] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """A number that changes with every step that is kept."""
        return self._version

    def record(self, key: ProfileKey, step: MeasuredStep) -> None:
        """Add one step; what is not positive and finite is dropped, as is one of many in a short time."""
        if not (_is_time(step.grad_time_s) and _is_time(step.iter_time_s)):
            return
        now = self._now()
        with self._lock:
            known = self._records.get(key)
            if known is not None and not known.is_due(now):
                return
            # Popped and put back, so that the situation measured longest ago is the first to be dropped.
            record = self._records.pop(key, None) or _Record()
            record.steps.append((step.grad_time_s, step.iter_time_s))
            record.last_at = now
            self._records[key] = record
            while len(self._records) > _MAX_SITUATIONS:
                del self._records[next(iter(self._records))]
            self._version += 1

    def medians(self) -> tuple[StepTimes, ...]:
        """Return the median times of every situation seen.

        Of an even number the lower one in the middle: what goes wrong in a step makes it longer.
        """
        with self._lock:
            copies = [(key, tuple(record.steps), record.last_at) for key, record in self._records.items()]
        latest = max((last_at for _, _, last_at in copies), default=0.0)
        return tuple(
            StepTimes(
                key=key,
                grad_time_s=statistics.median_low(grad for grad, _ in steps),
                iter_time_s=statistics.median_low(last for _, last in steps),
                count=len(steps),
                freshness=max(0.5 ** ((latest - last_at) / _HALF_LIFE_S), _LEAST_FRESHNESS),
            )
            for key, steps, last_at in copies
        )

    def most_seen(self) -> tuple[int, int]:
        """Return the most replicas and the most nodes measured so far; (0, 0) before the first step."""
        with self._lock:
            return (
                max((key.num_gpus for key in self._records), default=0),
                max((key.num_nodes for key in self._records), default=0),
            )

    def state_dict(self) -> dict[str, Any]:
        """Return plain lists for a checkpoint."""
        with self._lock:
            return {
                "situations": [
                    {
                        "key": [s.num_nodes, s.num_gpus, s.atomic_batch_size, s.gpu_type],
                        "last_at": record.last_at,
                        "steps": [list(step) for step in record.steps],
                    }
                    for s, record in self._records.items()
                ]
            }

    def load_state_dict(self, state: Mapping[str, Sequence[Any]]) -> None:
        """Replace everything by what `state_dict` returned."""
        records: dict[ProfileKey, _Record] = {}
        for saved in state.get("situations", ()):
            nodes, gpus, atomic, gpu_type = saved["key"]
            key = ProfileKey(num_nodes=nodes, num_gpus=gpus, atomic_batch_size=atomic, gpu_type=gpu_type)
            record = records[key] = _Record(last_at=saved["last_at"])
            # A checkpoint may hold more numbers of each step.
            record.steps.extend((step[0], step[1]) for step in saved["steps"])
        with self._lock:
            self._records = records
            self._version += 1


def _is_time(value: float) -> bool:
    return math.isfinite(value) and value > 0
