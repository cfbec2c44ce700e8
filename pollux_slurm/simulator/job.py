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


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedJob:
    """State of one job. Times in seconds of the simulation's clock.

    `choose_batch` is asked for a batch at the start of each run and after each epoch.
    """

    job: WorkloadJob
    application: Application
    choose_batch: ChooseBatch = field(repr=False)
    pieces: Pieces = ()
    batch: BatchChoice | None = None
    delay_s: float = 0.0
    epoch: int = 0
    progress: float = 0.0
    finished_s: float | None = None
    num_restarts: int | None = None
    gpu_seconds: float = 0.0
    lost_gpu_seconds: float = 0.0
    seen: dict[tuple[int, int, int], Observation] = field(default_factory=dict)
    statistics: GradientStatistics | None = None

    @property
    def placement(self) -> Placement:
        return tuple(gpus for _, gpus in self.pieces)

    @property
    def num_gpus(self) -> int:
        return sum(self.placement)

    def reallocate(self, pieces: Pieces, *, delay_s: float) -> None:
        """Give other GPUs, or none. With any, the job makes no progress for `delay_s`."""
        self.pieces = pieces
        if not pieces:
            return
        self.batch = self.choose_batch(self)
        self.delay_s = delay_s
        self.num_restarts = 0 if self.num_restarts is None else self.num_restarts + 1

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
        batch_size = sum(placement) * atomic * passes
        time = self.application.step_time(placement, atomic)
        self.statistics = self.application.statistics(batch_size, self.epoch)
        self.seen.setdefault(
            (len(placement), sum(placement), atomic),
            Observation(
                num_nodes=len(placement),
                num_gpus=sum(placement),
                atomic_batch_size=atomic,
                grad_time_s=time.pass_s,
                iter_time_s=time.step_s,
            ),
        )
        step_s = time.step_s + time.pass_s * (passes - 1)
        return float(gain(self.statistics, self.application.initial_batch_size, batch_size)) / step_s


ChooseBatch: TypeAlias = Callable[[SimulatedJob], BatchChoice]
