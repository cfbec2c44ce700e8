"""One job of a simulation: it trains on its allocation with the step times of its application's traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from pollux_slurm.errors import TraceError
from pollux_slurm.model import BatchChoice, PromiseState
from pollux_slurm.simulator.engine.cluster_rules import InPlace
from pollux_slurm.simulator.engine.measurements import JobMeasurements
from pollux_slurm.simulator.inputs.applications import Application, Placement
from pollux_slurm.simulator.inputs.workload import WorkloadJob

# An allocation: (node, GPUs on it), in the order given. The same nodes in another order are a move.
GpusByNode = tuple[tuple[int, int], ...]
# The GPU type of the artifact's step times.
MEASURED_GPU_TYPE = "t4"


@dataclass(slots=True, kw_only=True)
class Interruption:
    """A time without progress: its `kind` (such as `checkpoint`), and how long it still takes.

    `owns_gpus` is False while the job waits without GPUs.
    """

    kind: str
    left_s: float
    owns_gpus: bool = True


@dataclass(slots=True, kw_only=True)
class _Stay:
    """A stay on an allocation: its speed, batch and interruptions; a moving job has two of them."""

    allocation: GpusByNode
    gpu_type: str
    speed: float
    batch: BatchChoice | None
    interruptions: list[Interruption]


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedJob:
    """State of one job. Times in seconds of the simulation's clock, progress in units of M0.

    The policy sizes and moves `adaptive` jobs. `choose_batch` is called at the start of each run, and when
    the allocation, the measurements or the gradient statistics have changed; it may depend on nothing else.
    `gpu_type` is that of its GPUs, the slowest of several. `speed` is how fast one computes relative to the
    plain nodes' type; it counts where the type has no step times of its own. `interference` is the part of
    its speed lost to other jobs on its nodes. `measured` is what its agent knows.

    With `exact`, it behaves as on a Slurm cluster: it writes a checkpoint for `write_s` after each
    `checkpoint_interval_s` of training, and ends at any fraction of a second. Otherwise its epochs end at
    whole seconds, as in the artifact, unless its `work` is not 1: such epochs may be shorter than a second.

    `first_started_s` is when it first got GPUs; `num_restarts` is None until then, and does not count the
    `num_regroups`, which are moves in place. `gpu_seconds` counts every GPU while the job owns it.
    `lost_gpu_seconds` is the part without progress, or whose progress a failure destroyed (`lost_progress`).
    `interrupted_s` is the time without progress by kind. `expected_delay_s` is the delay that the policy
    expects of its next requeue. A job with `in_place` can be moved so: it has its GPUs in `wings`, and the
    policy expects `in_place_delay_s` of such a move. `promise` is the policy's last answer to a job that asks
    to be finished by a moment, and `accepted_s` when it was first accepted.
    """

    job: WorkloadJob
    application: Application
    choose_batch: ChooseBatch = field(repr=False)
    adaptive: bool = True
    exact: bool = False
    measured: JobMeasurements = field(default_factory=JobMeasurements)
    checkpoint_interval_s: float | None = None
    write_s: float = 0.0
    allocation: GpusByNode = ()
    gpu_type: str = MEASURED_GPU_TYPE
    speed: float = 1.0
    interference: float = 0.0
    batch: BatchChoice | None = None
    interruptions: list[Interruption] = field(default_factory=list)
    expected_delay_s: float = 30.0
    in_place: InPlace | None = None
    in_place_delay_s: float | None = None
    wings: tuple[GpusByNode, ...] = ()
    epoch: int = 0
    progress: float = 0.0
    first_started_s: float | None = None
    finished_s: float | None = None
    num_restarts: int | None = None
    num_regroups: int = 0
    num_failures: int = 0
    promise: PromiseState | None = None
    accepted_s: float | None = None
    gpu_seconds: float = 0.0
    lost_gpu_seconds: float = 0.0
    lost_progress: float = 0.0
    interrupted_s: dict[str, float] = field(default_factory=dict)
    # Where it trains for another `_leaves_source_in_s`, until the GPUs of its new allocation are free.
    _source: _Stay | None = None
    _leaves_source_in_s: float = 0.0
    # Whether it then regroups instead of starting from a checkpoint, after how many idle GPU seconds.
    _regroups: bool = False
    _idle_gpu_s: float = 0.0
    # The useless part of all progress so far.
    _wasted_progress: float = 0.0
    # (epoch, progress, wasted progress) of the last checkpoint, and the training since.
    _saved: tuple[int, float, float] = (0, 0.0, 0.0)
    _unsaved_s: float = 0.0
    _unsaved_gpu_s: float = 0.0
    # An allocation with its placement and its number of GPUs.
    _placement_cache: tuple[GpusByNode, Placement, int] = ((), (), 0)
    # What the present batch was chosen for.
    _batch_inputs: tuple[object, ...] = ()

    @property
    def placement(self) -> Placement:
        return self._placed()[1]

    @property
    def num_gpus(self) -> int:
        return self._placed()[2]

    def _placed(self) -> tuple[GpusByNode, Placement, int]:
        if self._placement_cache[0] is not self.allocation:
            placement = tuple([gpus for _, gpus in self.allocation])
            self._placement_cache = (self.allocation, placement, sum(placement))
        return self._placement_cache

    @property
    def total_useful_progress(self) -> float:
        """All useful progress ever made, including what failures destroyed."""
        return self.useful_progress + self.lost_progress

    @property
    def useful_progress(self) -> float:
        """The progress so far, each example weighted with the statistical efficiency of its batch."""
        return self.progress - self._wasted_progress

    @property
    def in_flight(self) -> bool:
        """Whether a reallocation of the job is under way: it is not moved again before its first step.

        In the artifact, a job may move again while it restarts.
        """
        return self._source is not None or (self.exact and bool(self.interruptions))

    @property
    def source(self) -> GpusByNode:
        """The allocation on which it still trains while its new one is not free yet."""
        return self._source.allocation if self._source is not None else ()

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes of its allocation, and of its source while it moves."""
        return frozenset(node for node, _ in (*self.allocation, *self.source))

    def epoch_end(self, epoch: int) -> float:
        """Return the progress at which `epoch`, counted from 0, ends."""
        return self.application.epoch_end(epoch) * self.job.work

    def reallocate(
        self,
        allocation: GpusByNode,
        *,
        now_s: float,
        interruptions: Iterable[Interruption] = (),
        after_s: float = 0.0,
        regrouped: tuple[GpusByNode, ...] = (),
        idle_gpu_s: float = 0.0,
        gpu_type: str = MEASURED_GPU_TYPE,
        speed: float = 1.0,
    ) -> None:
        """Change the allocation. On one that is not empty, the job makes no progress during `interruptions`.

        A running job first trains on its source for another `after_s`. In place it writes no checkpoint, has
        the wings `regrouped`, and its new GPUs have been idle for `idle_gpu_s` GPU seconds when it leaves its
        source. A start has one wing.
        """
        if self.allocation and not allocation and self.exact:
            self._spend(self.write_s, kind="checkpoint")
        before = _Stay(
            allocation=self.allocation,
            gpu_type=self.gpu_type,
            speed=self.speed,
            batch=self.batch,
            interruptions=self.interruptions,
        )
        self._source, self._leaves_source_in_s = None, 0.0
        self._regroups, self._idle_gpu_s = bool(regrouped), idle_gpu_s
        self.wings = regrouped or ((allocation,) if self.in_place is not None and allocation else ())
        self.allocation, self.interruptions = allocation, list(interruptions) if allocation else []
        if after_s > 0 and before.allocation and allocation:
            self._source, self._leaves_source_in_s = before, after_s
        else:
            self._leave_source()
        if not allocation:
            return
        self.gpu_type, self.speed = gpu_type, speed
        self._choose()
        if self.num_restarts is None:
            self.first_started_s = now_s + sum(
                interruption.left_s for interruption in self.interruptions if not interruption.owns_gpus
            )
            self.num_restarts = 0
        elif regrouped:
            self.num_regroups += 1
        else:
            self.num_restarts += 1

    def fail(self) -> None:
        """Lose the GPUs, and the progress since the last checkpoint."""
        epoch, progress, useless = self._saved
        self.lost_progress += self.useful_progress - (progress - useless)
        self.lost_gpu_seconds += self._unsaved_gpu_s
        self.epoch, self.progress, self._wasted_progress = epoch, progress, useless
        self.allocation, self.wings, self._source, self.interruptions = (), (), None, []
        self.num_failures += 1
        self._save()

    def advance(self, now_s: float, duration_s: float) -> None:
        """Train from `now_s` for `duration_s`, or to the end if that is sooner."""
        if not self.allocation or self.finished_s is not None:
            return
        self.measured.begin_round()
        if self._source is not None:
            spent_s = min(self._leaves_source_in_s, duration_s)
            self._swap()
            self._run(now_s, spent_s)
            self._swap()
            now_s, duration_s = now_s + spent_s, duration_s - spent_s
            self._leaves_source_in_s -= spent_s
            if self._leaves_source_in_s <= 0 and self.finished_s is None:
                self._source = None
                self._leave_source()
                self._choose()
        self._run(now_s, duration_s)

    def _leave_source(self) -> None:
        if not self._regroups:
            self._save()
        self.gpu_seconds += self._idle_gpu_s
        self.lost_gpu_seconds += self._idle_gpu_s
        self._idle_gpu_s = 0.0

    def _choose(self) -> None:
        """Choose a batch if anything has changed that the choice may depend on."""
        measured = self.measured
        inputs = (self.allocation, self.gpu_type, measured.num_measured, measured.statistics)
        if self.batch is None or inputs != self._batch_inputs:
            self.batch, self._batch_inputs = self.choose_batch(self), inputs

    def _swap(self) -> None:
        old = self._source
        assert old is not None
        self.allocation, old.allocation = old.allocation, self.allocation
        self.gpu_type, old.gpu_type = old.gpu_type, self.gpu_type
        self.speed, old.speed = old.speed, self.speed
        self.batch, old.batch = old.batch, self.batch
        self.interruptions, old.interruptions = old.interruptions, self.interruptions

    def _run(self, now_s: float, left_s: float) -> None:
        while left_s > 0 and self.finished_s is None:
            every = self.checkpoint_interval_s
            if every is not None and self._unsaved_s >= every:
                self._save()
                self.interruptions.append(Interruption(kind="checkpoint", left_s=self.write_s))
            if self.interruptions:
                spent_s = self._interrupt(left_s)
            else:
                train_s = left_s if every is None else min(left_s, every - self._unsaved_s)
                spent_s = self._train(now_s, train_s)
                gpu_s = spent_s * self.num_gpus
                self.gpu_seconds += gpu_s
                self._unsaved_s += spent_s
                self._unsaved_gpu_s += gpu_s
                self._choose()
            now_s, left_s = now_s + spent_s, left_s - spent_s

    def _interrupt(self, left_s: float) -> float:
        interruption = self.interruptions[0]
        spent_s = min(interruption.left_s, left_s)
        interruption.left_s -= spent_s
        if interruption.left_s <= 0:
            self.interruptions.pop(0)
        self._spend(spent_s, kind=interruption.kind, owns_gpus=interruption.owns_gpus)
        return spent_s

    def _spend(self, spent_s: float, *, kind: str, owns_gpus: bool = True) -> None:
        """Account for a time without progress."""
        self.interrupted_s[kind] = self.interrupted_s.get(kind, 0.0) + spent_s
        if owns_gpus:
            self.gpu_seconds += spent_s * self.num_gpus
            self.lost_gpu_seconds += spent_s * self.num_gpus

    def _save(self) -> None:
        self._saved = (self.epoch, self.progress, self._wasted_progress)
        self._unsaved_s = self._unsaved_gpu_s = 0.0

    def _train(self, now_s: float, left_s: float) -> float:
        """Train to the end of the epoch, for at most `left_s`; return how long it took."""
        assert self.batch is not None
        try:
            rate = self.measured.rate(
                self.application,
                self.batch,
                self.epoch,
                allocation=self.allocation,
                gpu_type=self.gpu_type,
                speed=self.speed,
                interference=self.interference,
            )
        except TraceError as error:
            raise TraceError(f"job {self.job.name}: {error}") from None
        useless, end = 1.0 - self.measured.useful_part, self.epoch_end(self.epoch)
        gained = rate * left_s
        if self.progress + gained < end:
            self.progress += gained
            self._wasted_progress += gained * useless
            return left_s
        self._wasted_progress += (end - self.progress) * useless
        spent_s = (end - self.progress) / rate
        if not self.exact and self.job.work == 1.0:
            spent_s = round(spent_s)
        self.epoch += 1
        self.progress = end
        if self.epoch == self.application.num_epochs:
            self.finished_s = now_s + spent_s
        return spent_s


ChooseBatch: TypeAlias = Callable[[SimulatedJob], BatchChoice]
