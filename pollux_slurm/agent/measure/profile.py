"""Measured step times of one job, by situation. Thread-safe, bounded."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Steps kept per situation: a quarter of an hour, few enough to forget a node's former speed. In a median of
# five minutes, three slow ones are all that the job knows of its size, and make it leave it.
_MAX_STEPS = 192
# At most one step is kept in this time, so the median covers minutes and not the last seconds. A job that
# starts on the same machine slows a few steps only. A median of those would make one allocation look slow
# until the next is measured at a bad moment, and the job would move to and fro between them.
_MIN_SPACING_S = 5.0
# A median of this many steps has full weight.
_FULL_WEIGHT_AT = 8
# A median of this many steps is confirmed: they span some two minutes.
_CONFIRMED_AT = 32
_MAX_SITUATIONS = 256
# The weight of a situation halves for each such time between its last step and the newest of all: nodes and
# the jobs beside change. It has a lower bound, because for that situation there may be nothing newer.
_HALF_LIFE_S = 12 * 3600.0
_MIN_FRESHNESS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One step's times in seconds, with its atomic batch size.

    `micro_batch_s` is the mean time of a micro-batch without synchronisation, `last_time_s` that of the last
    micro-batch, with it. `total_s` is the time of the whole step over `num_examples` examples of all
    replicas. `data_s` is how long the host waited for the step's data: on a CPU it is contained in the other
    times, on a GPU only as far as the device was idle.
    """

    atomic_batch_size: int
    num_examples: int
    micro_batch_s: float
    last_time_s: float
    total_s: float
    data_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Under which conditions a step was measured: nodes, replicas, atomic batch size, GPU type.

    `gpu_type` is the driver's name, None without a GPU.
    """

    num_nodes: int
    num_gpus: int
    atomic_batch_size: int
    gpu_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Median times of one situation, in seconds, over `count` steps.

    `micro_batch_s` is a micro-batch without synchronisation, `last_time_s` the last micro-batch of a step,
    with it; both contain the time that a slow loader adds. `freshness` is 1 for the situation measured last,
    less for one measured long before. `expired` ones are old for so few steps (`goodput.Observation`).
    """

    situation: Situation
    micro_batch_s: float
    last_time_s: float
    count: int
    freshness: float = 1.0
    expired: bool = False

    @property
    def weight(self) -> float:
        return min(self.count, _FULL_WEIGHT_AT) / _FULL_WEIGHT_AT * self.freshness

    @property
    def confirmed(self) -> bool:
        """Tell whether the steps span minutes, and not a moment in which the machine was busy."""
        return self.count >= _CONFIRMED_AT


@dataclass(slots=True)
class _Record:
    """The newest steps of one situation, as seconds of (micro-batch, last), and the time of the last one."""

    steps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_MAX_STEPS))
    last_at: float = 0.0

    def is_due(self, now: float) -> bool:
        """Tell whether to keep a step now: all of the first ones, then one in `_MIN_SPACING_S`.

        The clock may be set back, so a negative interval counts as due.
        """
        return len(self.steps) < _FULL_WEIGHT_AT or not 0.0 <= now - self.last_at < _MIN_SPACING_S


class StepProfile:
    """All step times that a job has measured, including its earlier runs. Medians are robust to outliers.

    `now` is wall-clock time, which is comparable between runs.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._records: dict[Situation, _Record] = {}
        self._version = 0
        self._start_s = 0.0

    def set_start_cost(self, start_s: float) -> None:
        """Set what a start of this job costs: the more, the longer medians last."""
        self._start_s = start_s

    @property
    def version(self) -> int:
        """A counter that changes with every step that is kept."""
        return self._version

    def record(self, situation: Situation, step: MeasuredStep) -> None:
        """Add a step; drop it if its times are not positive and finite, or it follows the last too soon."""
        if not (_is_time(step.micro_batch_s) and _is_time(step.last_time_s)):
            return
        now = self._now()
        with self._lock:
            known = self._records.get(situation)
            if known is not None and not known.is_due(now):
                return
            # Reinserted at the end, so that the situation measured longest ago is dropped first.
            record = self._records.pop(situation, None) or _Record()
            record.steps.append((step.micro_batch_s, step.last_time_s))
            record.last_at = now
            self._records[situation] = record
            while len(self._records) > _MAX_SITUATIONS:
                del self._records[next(iter(self._records))]
            self._version += 1

    def medians(self) -> tuple[StepTimes, ...]:
        """Return the median times of every situation.

        Of an even number, the lower of the two in the middle: disturbances make steps longer, never shorter.
        """
        from pollux_slurm.goodput import lasts_s

        with self._lock:
            copies = [
                (situation, tuple(record.steps), record.last_at)
                for situation, record in self._records.items()
            ]
        latest = max((last_at for _, _, last_at in copies), default=0.0)
        return tuple(
            StepTimes(
                situation=situation,
                micro_batch_s=statistics.median_low(alone for alone, _ in steps),
                last_time_s=statistics.median_low(last for _, last in steps),
                count=len(steps),
                freshness=max(0.5 ** ((latest - last_at) / _HALF_LIFE_S), _MIN_FRESHNESS),
                expired=len(steps) < _MAX_STEPS
                and latest - last_at > lasts_s(len(steps) * _MIN_SPACING_S, start_s=self._start_s),
            )
            for situation, steps, last_at in copies
        )

    def most_seen(self) -> tuple[int, int]:
        """Return the largest numbers of replicas and of nodes measured; (0, 0) before the first step."""
        with self._lock:
            return (
                max((situation.num_gpus for situation in self._records), default=0),
                max((situation.num_nodes for situation in self._records), default=0),
            )

    def state_dict(self) -> dict[str, Any]:
        """Return plain lists for a checkpoint."""
        with self._lock:
            return {
                "situations": [
                    {
                        "key": [
                            situation.num_nodes,
                            situation.num_gpus,
                            situation.atomic_batch_size,
                            situation.gpu_type,
                        ],
                        "last_at": record.last_at,
                        "steps": [list(step) for step in record.steps],
                    }
                    for situation, record in self._records.items()
                ]
            }

    def load_state_dict(self, state: Mapping[str, Sequence[Any]]) -> None:
        """Replace all steps by those that `state_dict` returned."""
        records: dict[Situation, _Record] = {}
        for saved in state.get("situations", ()):
            nodes, gpus, atomic, gpu_type = saved["key"]
            situation = Situation(num_nodes=nodes, num_gpus=gpus, atomic_batch_size=atomic, gpu_type=gpu_type)
            record = records[situation] = _Record(last_at=saved["last_at"])
            record.steps.extend((micro_batch_s, last_s) for micro_batch_s, last_s in saved["steps"])
        with self._lock:
            self._records = records
            self._version += 1


def _is_time(value: float) -> bool:
    return math.isfinite(value) and value > 0
