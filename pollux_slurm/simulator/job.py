"""One job of a simulation: it trains as its application's traces say, with what it was given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from pollux_slurm.goodput import Observation, gain
from pollux_slurm.model import BatchChoice, GradientStatistics
from pollux_slurm.simulator.applications import Application, Placement
from pollux_slurm.simulator.workload import WorkloadJob

# (node, GPUs on it), in the order in which they were given: the same nodes in another order are a move.
Pieces = tuple[tuple[int, int], ...]
# (nodes, GPUs, examples per GPU and pass) that a step was measured on.
Situation = tuple[int, int, int]
# The GPUs that the artifact's step times were measured on.
MEASURED_TYPE = "t4"


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedJob:
    """State of one job. Times in seconds of the simulation's clock, progress in steps at the initial batch.

    `choose_batch` is asked for a batch at the start of each run and after each epoch. An `adaptive` job is
    the policy's to size and move. `gpu_type` is that of its GPUs, the slowest of several, and `speed` how
    fast one computes relative to the measured type. `seen` holds what its agent has measured, by GPU type.

    `first_started_s` is when it was first given GPUs; `num_restarts` is None until then. `gpu_seconds` counts
    every GPU while it held it; `lost_gpu_seconds` the part of them without progress, or whose progress a
    failure took: that is `lost_progress`. `expected_delay_s` is what the policy thinks that a move costs.
    """

    job: WorkloadJob
    application: Application
    choose_batch: ChooseBatch = field(repr=False)
    adaptive: bool = True
    pieces: Pieces = ()
    gpu_type: str = MEASURED_TYPE
    speed: float = 1.0
    batch: BatchChoice | None = None
    delay_s: float = 0.0
    expected_delay_s: float = 30.0
    epoch: int = 0
    progress: float = 0.0
    first_started_s: float | None = None
    finished_s: float | None = None
    num_restarts: int | None = None
    num_failures: int = 0
    gpu_seconds: float = 0.0
    lost_gpu_seconds: float = 0.0
    lost_progress: float = 0.0
    seen: dict[str, dict[Situation, Observation]] = field(default_factory=dict)
    statistics: GradientStatistics | None = None

    @property
    def placement(self) -> Placement:
        return tuple(gpus for _, gpus in self.pieces)

    @property
    def num_gpus(self) -> int:
        return sum(gpus for _, gpus in self.pieces)

    def reallocate(
        self,
        pieces: Pieces,
        *,
        delay_s: float,
        now_s: float,
        gpu_type: str = MEASURED_TYPE,
        speed: float = 1.0,
    ) -> None:
        """Give other GPUs, or none. With any, the job makes no progress for `delay_s`."""
        self.pieces = pieces
        if not pieces:
            return
        self.gpu_type, self.speed = gpu_type, speed
        self.batch = self.choose_batch(self)
        self.delay_s = delay_s
        if self.num_restarts is None:
            self.first_started_s, self.num_restarts = now_s, 0
        else:
            self.num_restarts += 1

    def advance(self, now_s: float, duration_s: float) -> None:
        """Train from `now_s` for `duration_s`, or to the end if that is sooner."""
        if not self.pieces or self.finished_s is not None:
            return
        delay_s = min(self.delay_s, duration_s)
        self.delay_s -= delay_s
        self.gpu_seconds += delay_s * self.num_gpus
        self.lost_gpu_seconds += delay_s * self.num_gpus
        now_s, left_s = now_s + delay_s, duration_s - delay_s
        while left_s > 0 and self.finished_s is None:
            spent_s = self._train(now_s, left_s)
            self.gpu_seconds += spent_s * self.num_gpus
            now_s, left_s = now_s + spent_s, left_s - spent_s
            self.batch = self.choose_batch(self)

    def _train(self, now_s: float, left_s: float) -> float:
        """Train to the end of the epoch, at most for `left_s`; return how long it took."""
        rate = self._measure()
        end = self.application.epoch_end(self.epoch)
        if self.progress + rate * left_s < end:
            self.progress += rate * left_s
            return left_s
        spent_s = round((end - self.progress) / rate)
        self.epoch += 1
        self.progress = end
        if self.epoch == self.application.num_epochs:
            self.finished_s = now_s + spent_s
        return spent_s

    def _measure(self) -> float:
        """Return progress per second with the present batch, and remember what an agent would measure."""
        assert self.batch is not None
        placement, atomic = self.placement, self.batch.atomic_batch_size
        passes = self.batch.accumulation_steps + 1
        num_gpus = self.num_gpus
        batch_size = num_gpus * atomic * passes
        time = self.application.step_time(placement, atomic)
        pass_s = time.pass_s / self.speed
        step_s = pass_s + time.sync_s if self.speed != 1.0 else time.step_s
        self.statistics = self.application.statistics(batch_size, self.epoch)
        situation = (len(placement), num_gpus, atomic)
        seen = self.seen.setdefault(self.gpu_type, {})
        if situation not in seen:
            seen[situation] = Observation(
                num_nodes=len(placement),
                num_gpus=num_gpus,
                atomic_batch_size=atomic,
                grad_time_s=pass_s,
                iter_time_s=step_s,
            )
        step_s += pass_s * (passes - 1)
        return float(gain(self.statistics, self.application.initial_batch_size, batch_size)) / step_s


ChooseBatch: TypeAlias = Callable[[SimulatedJob], BatchChoice]
