"""What the agent of a simulated job measures, and how fast the job is; with noise from minute to minute.

An agent's medians already remove single slow steps. What remains affects all steps of a minute: a busy host,
other traffic on the network, a lowered GPU clock.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pollux_slurm.errors import SimulationError
from pollux_slurm.goodput import Observation, lasts_s
from pollux_slurm.model import BatchChoice, GradientStatistics
from pollux_slurm.simulator.inputs.applications import Application

# What a step time was measured for: (nodes, GPUs, atomic batch size).
Situation = tuple[int, int, int]

OUTLIER = 10.0
"""Factor by which an outlier is too long."""
# The minutes that an agent's medians span (`agent/measure/profile.py`: 192 steps, 5 s apart).
_MINUTES_KEPT = 16
# The minutes that its 32 confirmed steps take.
_MINUTES_CONFIRMED = 2
# The number of reports over which the prediction error is averaged (`store/jobs/records.py`).
_REPORTS_COMPARED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementNoise:
    """How far measured step times are off in each minute; training itself is not slower.

    `spread` is the standard deviation of the logarithm of a micro-batch's time, and of the synchronisation's.
    In the share `outliers` of the minutes both are measured `OUTLIER` times too long.
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
    """Draws what one job's agent measures. The draws depend on the seed and the job's name only."""

    def __init__(self, noise: MeasurementNoise, *, seed: int, job: str) -> None:
        self._noise = noise
        self._random = random.Random(f"{seed} {job}")
        self._minutes: dict[tuple[object, ...], deque[tuple[float, float]]] = {}
        self._errors: deque[float] = deque(maxlen=_REPORTS_COMPARED)
        # The minutes measured so far, and the last one in each situation.
        self._minute = 0
        self._last_minute: dict[tuple[object, ...], int] = {}

    @property
    def error(self) -> float:
        """The mean relative error of the predicted throughput over the last reports: `prediction_error`."""
        return statistics.fmean(self._errors) if self._errors else 0.0

    def measure(self, truth: Observation, gpu_type: str) -> Observation:
        """Return the agent's medians after another minute in the situation of `truth`."""
        draw, spread = self._random, self._noise.spread
        slow = OUTLIER if draw.random() < self._noise.outliers else 1.0
        micro_batch_s = slow * truth.micro_batch_s * math.exp(draw.gauss(0.0, spread))
        sync_s = slow * (truth.last_time_s - truth.micro_batch_s) * math.exp(draw.gauss(0.0, spread))
        key = _key(truth, gpu_type)
        self._minute += 1
        self._last_minute[key] = self._minute
        minutes = self._minutes.setdefault(key, deque(maxlen=_MINUTES_KEPT))
        minutes.append((micro_batch_s, micro_batch_s + sync_s))
        expected = replace(
            truth,
            micro_batch_s=statistics.median_low(alone for alone, _ in minutes),
            last_time_s=statistics.median_low(last for _, last in minutes),
            confirmed=len(minutes) >= _MINUTES_CONFIRMED,
        )
        self._errors.append(min(abs(expected.last_time_s / (micro_batch_s + sync_s) - 1.0), 1.0))
        return expected

    def aged(self, observations: Sequence[Observation], gpu_type: str, restart_s: float) -> list[Observation]:
        """Return `observations`, those marked as expired that are old for so few minutes."""

        def is_expired(key: tuple[object, ...]) -> bool:
            spans, age_s = len(self._minutes[key]), 60.0 * (self._minute - self._last_minute[key])
            return spans < _MINUTES_KEPT and age_s > lasts_s(60.0 * spans, start_s=restart_s)

        return [replace(seen, expired=is_expired(_key(seen, gpu_type))) for seen in observations]


def _key(seen: Observation, gpu_type: str) -> tuple[object, ...]:
    return (gpu_type, seen.num_nodes, seen.num_gpus, seen.atomic_batch_size)


class JobMeasurements:
    """What one job's agent has measured, and the job's rate in its present situation.

    `by_type` has the observations by GPU type and situation. `num_measured` counts them: each situation once
    without `noisy`, once in each round with it. `statistics` are the gradient's with the present batch, and
    `useful_part` is the useful part of the progress made with it.
    """

    def __init__(self, noisy: NoisyMeasurements | None = None) -> None:
        self.noisy = noisy
        self.by_type: dict[str, dict[Situation, Observation]] = {}
        self.num_measured = 0
        self.statistics: GradientStatistics | None = None
        self.useful_part = 1.0
        # What the step time was computed for, and the step time; the epoch of the rate, and the rate.
        self._step_inputs: tuple[object, ...] = ()
        self._step_s = 0.0
        self._rate_epoch = -1
        self._rate = 0.0

    def begin_round(self) -> None:
        """Measure anew where measurements are noisy."""
        if self.noisy is not None:
            self._step_inputs = ()

    def rate(
        self,
        application: Application,
        batch: BatchChoice,
        epoch: int,
        *,
        allocation: Sequence[tuple[int, int]],
        gpu_type: str,
        speed: float,
        interference: float,
    ) -> float:
        """Return progress per second, and record what an agent would measure. Raises `TraceError`."""
        inputs = (allocation, batch, gpu_type, speed, interference)
        if inputs != self._step_inputs:
            self._step_s = self._observe(application, batch, allocation, gpu_type, speed)
            self._step_inputs = inputs
        elif epoch == self._rate_epoch:
            return self._rate
        batch_size = batch.global_batch_size
        self.statistics = application.statistics(batch_size, epoch)
        self.useful_part = application.useful_part(batch_size, epoch)
        gained = application.step_progress(batch_size, epoch)
        self._rate_epoch, self._rate = epoch, gained / self._step_s * (1.0 - interference)
        return self._rate

    def _observe(
        self,
        application: Application,
        batch: BatchChoice,
        allocation: Sequence[tuple[int, int]],
        gpu_type: str,
        speed: float,
    ) -> float:
        """Return the seconds of a step, and record what an agent would measure of it."""
        placement, atomic = tuple([gpus for _, gpus in allocation]), batch.atomic_batch_size
        num_gpus = sum(placement)
        time = application.step_time(placement, atomic, gpu_type)
        if gpu_type in application.gpu_types:
            speed = 1.0
        micro_batch_s = time.micro_batch_s / speed
        step_s = time.step_s if speed == 1.0 else micro_batch_s + time.sync_s
        situation = (len(placement), num_gpus, atomic)
        measured = self.by_type.setdefault(gpu_type, {})
        if situation not in measured or self.noisy is not None:
            self.num_measured += 1
            truth = Observation(
                num_nodes=len(placement),
                num_gpus=num_gpus,
                atomic_batch_size=atomic,
                micro_batch_s=micro_batch_s,
                last_time_s=step_s,
            )
            measured[situation] = truth if self.noisy is None else self.noisy.measure(truth, gpu_type)
        return step_s + micro_batch_s * batch.accumulation_steps
