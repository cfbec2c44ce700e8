"""What agents measure of step times on a cluster where these vary from minute to minute.

Single steps that take too long are lost in the medians of an agent; what is left is what all steps of a
minute share: a busy host, a neighbour on the network, a clock that was lowered.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from dataclasses import dataclass, replace

from pollux_slurm.errors import SimulationError
from pollux_slurm.goodput import Observation

OUTLIER = 10.0
"""How many times too long an outlier is."""
# So long do an agent's medians reach back in a situation (`agent/measure/profile.py`: 64 steps, 5 s apart).
_MINUTES_KEPT = 5
# So many of them are its 32 steps that no busy moment made slow.
_MINUTES_CONFIRMED = 2
# Over so many measurements predictions are judged (`store/jobs/records.py`).
_REPORTS_COMPARED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementNoise:
    """How far measured step times are off, from one minute to the next; training itself is as fast as ever.

    `spread` is the standard deviation of the logarithm of a pass, and of the synchronisation after it.
    `outliers` of the minutes show both `OUTLIER` times too long.
    """

    spread: float = 0.0
    outliers: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.spread <= 2:
            raise SimulationError(f"the noise of measurements must lie between 0 and 2, not {self.spread:g}")
        if not 0 <= self.outliers <= 1:
            raise SimulationError(f"the share of outliers must lie between 0 and 1, not {self.outliers:g}")

    def __bool__(self) -> bool:
        return self.spread > 0 or self.outliers > 0


NO_NOISE = MeasurementNoise()


class NoisyMeasurements:
    """What one job's agent measures: drawn by seed and name, so that no other job's draws depend on it."""

    def __init__(self, noise: MeasurementNoise, *, seed: int, job: str) -> None:
        self._noise = noise
        self._random = random.Random(f"{seed} {job}")
        self._minutes: dict[tuple[object, ...], deque[tuple[float, float]]] = {}
        self._errors: deque[float] = deque(maxlen=_REPORTS_COMPARED)

    @property
    def error(self) -> float:
        """By what part throughput was off what was expected, on average of late: `prediction_error`."""
        return statistics.fmean(self._errors) if self._errors else 0.0

    def measure(self, truth: Observation, gpu_type: str) -> Observation:
        """Return the medians after another minute in the situation of `truth`."""
        draw, spread = self._random, self._noise.spread
        slow = OUTLIER if draw.random() < self._noise.outliers else 1.0
        grad_s = slow * truth.grad_time_s * math.exp(draw.gauss(0.0, spread))
        sync_s = slow * (truth.iter_time_s - truth.grad_time_s) * math.exp(draw.gauss(0.0, spread))
        key = (gpu_type, truth.num_nodes, truth.num_gpus, truth.atomic_batch_size)
        minutes = self._minutes.setdefault(key, deque(maxlen=_MINUTES_KEPT))
        minutes.append((grad_s, grad_s + sync_s))
        expected = replace(
            truth,
            grad_time_s=statistics.median_low(grad for grad, _ in minutes),
            iter_time_s=statistics.median_low(last for _, last in minutes),
            confirmed=len(minutes) >= _MINUTES_CONFIRMED,
        )
        self._errors.append(min(abs(expected.iter_time_s / (grad_s + sync_s) - 1.0), 1.0))
        return expected
