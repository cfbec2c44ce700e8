"""Measured step times of one job, by situation, kept small and safe to read from another thread."""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Per situation, the newest of so many steps count: enough for a median, few enough to forget a changed node.
_NEWEST = 64
# A median of this many steps counts in full.
_FULL_WEIGHT_AT = 8
_MAX_SITUATIONS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Where a step time was measured: N nodes, K replicas, atomic batch size m."""

    num_nodes: int
    num_gpus: int
    atomic_batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Typical times of one situation, in seconds. `count` is how many steps they are the median of.

    `grad_time_s` is a pass without synchronisation, `iter_time_s` the last pass of a step with it.
    """

    situation: Situation
    grad_time_s: float
    iter_time_s: float
    count: int

    @property
    def weight(self) -> float:
        return min(self.count, _FULL_WEIGHT_AT) / _FULL_WEIGHT_AT


class StepProfile:
    """All step times a job has measured, its earlier runs included. Medians, so outliers do not count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: dict[Situation, deque[tuple[float, float]]] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """A number that changes with every record."""
        return self._version

    def record(self, situation: Situation, *, grad_time_s: float, iter_time_s: float) -> None:
        """Add one step; a time that is not positive and finite is dropped."""
        if not (_is_time(grad_time_s) and _is_time(iter_time_s)):
            return
        with self._lock:
            # Popped and put back, so that the situation measured longest ago is the first to be dropped.
            times = self._times.pop(situation, None)
            if times is None:
                times = deque(maxlen=_NEWEST)
            times.append((grad_time_s, iter_time_s))
            self._times[situation] = times
            while len(self._times) > _MAX_SITUATIONS:
                del self._times[next(iter(self._times))]
            self._version += 1

    def medians(self) -> tuple[StepTimes, ...]:
        """Return the median times of every situation seen."""
        with self._lock:
            copies = [(situation, tuple(times)) for situation, times in self._times.items()]
        return tuple(
            StepTimes(
                situation=situation,
                grad_time_s=statistics.median(grad for grad, _ in times),
                iter_time_s=statistics.median(last for _, last in times),
                count=len(times),
            )
            for situation, times in copies
        )

    def most_seen(self) -> tuple[int, int]:
        """Return the most replicas and the most nodes measured so far; (0, 0) before the first step."""
        with self._lock:
            return (
                max((situation.num_gpus for situation in self._times), default=0),
                max((situation.num_nodes for situation in self._times), default=0),
            )

    def state_dict(self) -> dict[str, Any]:
        """Return plain lists for a checkpoint."""
        with self._lock:
            return {
                "times": [
                    [s.num_nodes, s.num_gpus, s.atomic_batch_size, [list(pair) for pair in times]]
                    for s, times in self._times.items()
                ]
            }

    def load_state_dict(self, state: Mapping[str, Sequence[Any]]) -> None:
        """Replace everything by what `state_dict` returned."""
        times: dict[Situation, deque[tuple[float, float]]] = {}
        for nodes, gpus, atomic, pairs in state["times"]:
            situation = Situation(num_nodes=nodes, num_gpus=gpus, atomic_batch_size=atomic)
            times[situation] = deque(((grad, last) for grad, last in pairs), maxlen=_NEWEST)
        with self._lock:
            self._times = times
            self._version += 1


def _is_time(value: float) -> bool:
    return math.isfinite(value) and value > 0
