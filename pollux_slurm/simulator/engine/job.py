"""One job of a simulation: it trains as its application's traces say, with what it was given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from pollux_slurm.errors import TraceError
from pollux_slurm.goodput import Observation
from pollux_slurm.model import BatchChoice, GradientStatistics
from pollux_slurm.simulator.engine.measurement_noise import NoisyMeasurements
from pollux_slurm.simulator.inputs.applications import Application, Placement
from pollux_slurm.simulator.inputs.workload import WorkloadJob

# (node, GPUs on it), in the order in which they were given: the same nodes in another order are a move.
Pieces = tuple[tuple[int, int], ...]
# (nodes, GPUs, examples per GPU and pass) that a step was measured on.
Situation = tuple[int, int, int]
# The GPUs that the artifact's step times were measured on.
MEASURED_TYPE = "t4"


@dataclass(slots=True, kw_only=True)
class Pause:
    """A time without progress: the `step` of a reallocation that it is, and how long it still takes.

    With `held`, the job's GPUs are taken meanwhile.
    """

    step: str
    left_s: float
    held: bool = True


@dataclass(slots=True, kw_only=True)
class _Shape:
    """What a job runs on; kept aside while it still runs on another."""

    pieces: Pieces
    gpu_type: str
    speed: float
    batch: BatchChoice | None
    pauses: list[Pause]


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedJob:
    """State of one job. Times in seconds of the simulation's clock, progress in steps at the initial batch.

    `choose_batch` is asked for a batch at the start of each run, and after each epoch and round in which
    something was learnt: its answer depends on nothing but what is held, was measured, and on statistics.
    An `adaptive` job is the policy's to size and move. `gpu_type` is that of its GPUs, the slowest of
    several, and `speed` how fast one computes relative to the measured type; `interference` is the share of
    its speed that neighbours take. `seen` holds what its agent has measured, by GPU type, and `num_measured`
    counts it: without `noisy`, each situation once; with it, anew in each round.

    With `exact`, it behaves as on a Slurm cluster: it checkpoints each `checkpoint_interval_s` of training,
    for `write_s`, and ends at any fraction of a second; else as in the artifact, at a whole second.

    `first_started_s` is when it was first given GPUs; `num_restarts` is None until then. `gpu_seconds` counts
    every GPU while it held it; `lost_gpu_seconds` the part of them without progress, or whose progress a
    failure took: that is `lost_progress`. `paused_s` tells the time without progress by step.
    `expected_delay_s` is what the policy thinks that a move costs.
    """

    job: WorkloadJob
    application: Application
    choose_batch: ChooseBatch = field(repr=False)
    adaptive: bool = True
    exact: bool = False
    noisy: NoisyMeasurements | None = None
    checkpoint_interval_s: float | None = None
    write_s: float = 0.0
    pieces: Pieces = ()
    gpu_type: str = MEASURED_TYPE
    speed: float = 1.0
    interference: float = 0.0
    batch: BatchChoice | None = None
    pauses: list[Pause] = field(default_factory=list)
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
    paused_s: dict[str, float] = field(default_factory=dict)
    seen: dict[str, dict[Situation, Observation]] = field(default_factory=dict)
    num_measured: int = 0
    statistics: GradientStatistics | None = None
    # What it trains on for another `_leaves_in_s`, until the GPUs that it was given are free.
    _old: _Shape | None = None
    _leaves_in_s: float = 0.0
    # What of the present progress is, and of all progress was, worth less than at the initial batch size.
    _useful_share: float = 1.0
    _useless: float = 0.0
    # (epoch, progress, useless) of the last checkpoint, and the training since.
    _saved: tuple[int, float, float] = (0, 0.0, 0.0)
    _unsaved_s: float = 0.0
    _unsaved_gpu_s: float = 0.0
    # Of which pieces the placement and the number of GPUs were last told.
    _told: tuple[Pieces, Placement, int] = ((), (), 0)
    # What there was to go by when a batch was last asked for.
    _chosen_by: tuple[object, ...] = ()
    # On what the job last trained, for how long a step there; in which epoch, and its progress per second.
    _trained_on: tuple[object, ...] = ()
    _step_s: float = 0.0
    _trained_in: int = -1
    _rate: float = 0.0

    @property
    def placement(self) -> Placement:
        return (self._told if self._told[0] is self.pieces else self._tell())[1]

    @property
    def num_gpus(self) -> int:
        return (self._told if self._told[0] is self.pieces else self._tell())[2]

    def _tell(self) -> tuple[Pieces, Placement, int]:
        placement = tuple([gpus for _, gpus in self.pieces])
        self._told = (self.pieces, placement, sum(placement))
        return self._told

    @property
    def made(self) -> float:
        """All useful progress ever made, that which failures took included."""
        return self.useful + self.lost_progress

    @property
    def useful(self) -> float:
        """The progress so far, each example as useful as it was in its batch."""
        return self.progress - self._useless

    @property
    def in_flight(self) -> bool:
        """Whether a reallocation is under way that the daemon's journal holds open: the job stays put."""
        return self.exact and (self._old is not None or bool(self.pauses))

    @property
    def trained(self) -> bool:
        """Whether there is anything to restore."""
        return self.progress > 0

    @property
    def leaving(self) -> Pieces:
        """The GPUs that it still trains on until it leaves for others."""
        return self._old.pieces if self._old is not None else ()

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes that it runs on, and those that it is about to leave for."""
        return frozenset(node for node, _ in (*self.pieces, *self.leaving))

    def learn_delay(self, cost_s: float) -> None:
        """Let the policy reckon with the mean of what moves have cost."""
        count = self.num_restarts or 1
        self.expected_delay_s = (
            cost_s if count == 1 else (self.expected_delay_s + (cost_s - self.expected_delay_s) / count)
        )

    def reallocate(
        self,
        pieces: Pieces,
        *,
        now_s: float,
        pauses: Iterable[Pause] = (),
        after_s: float = 0.0,
        gpu_type: str = MEASURED_TYPE,
        speed: float = 1.0,
    ) -> None:
        """Give other GPUs, or none. With any, the job makes no progress during `pauses`.

        With `after_s`, a running job first goes on with what it has for so long.
        """
        if self.pieces and not pieces and self.exact:
            self._spend(self.write_s, step="checkpoint")
        before = _Shape(
            pieces=self.pieces,
            gpu_type=self.gpu_type,
            speed=self.speed,
            batch=self.batch,
            pauses=self.pauses,
        )
        self._old, self._leaves_in_s = None, 0.0
        self.pieces, self.pauses = pieces, list(pauses) if pieces else []
        if after_s > 0 and before.pieces and pieces:
            self._old, self._leaves_in_s = before, after_s
        else:
            self._save()
        if not pieces:
            return
        self.gpu_type, self.speed = gpu_type, speed
        self._choose()
        if self.num_restarts is None:
            self.first_started_s = now_s + sum(pause.left_s for pause in self.pauses if not pause.held)
            self.num_restarts = 0
        else:
            self.num_restarts += 1

    def fail(self) -> None:
        """Lose the GPUs, and what was trained since the last checkpoint."""
        epoch, progress, useless = self._saved
        self.lost_progress += self.useful - (progress - useless)
        self.lost_gpu_seconds += self._unsaved_gpu_s
        self.epoch, self.progress, self._useless = epoch, progress, useless
        self.pieces, self._old, self.pauses = (), None, []
        self.num_failures += 1
        self._save()

    def advance(self, now_s: float, duration_s: float) -> None:
        """Train from `now_s` for `duration_s`, or to the end if that is sooner."""
        if not self.pieces or self.finished_s is not None:
            return
        if self.noisy is not None:
            self._trained_on = ()
        if self._old is not None:
            spent_s = min(self._leaves_in_s, duration_s)
            self._swap()
            self._run(now_s, spent_s)
            self._swap()
            now_s, duration_s = now_s + spent_s, duration_s - spent_s
            self._leaves_in_s -= spent_s
            if self._leaves_in_s <= 0 and self.finished_s is None:
                self._old = None
                self._save()
                self._choose()
        self._run(now_s, duration_s)

    def _choose(self) -> None:
        """Ask for a batch if anything has changed that an answer may depend on."""
        told = (self.pieces, self.gpu_type, self.num_measured, self.statistics)
        if self.batch is None or told != self._chosen_by:
            self.batch, self._chosen_by = self.choose_batch(self), told

    def _swap(self) -> None:
        old = self._old
        assert old is not None
        self.pieces, old.pieces = old.pieces, self.pieces
        self.gpu_type, old.gpu_type = old.gpu_type, self.gpu_type
        self.speed, old.speed = old.speed, self.speed
        self.batch, old.batch = old.batch, self.batch
        self.pauses, old.pauses = old.pauses, self.pauses

    def _run(self, now_s: float, left_s: float) -> None:
        while left_s > 0 and self.finished_s is None:
            every = self.checkpoint_interval_s
            if every is not None and self._unsaved_s >= every:
                self._save()
                self.pauses.append(Pause(step="checkpoint", left_s=self.write_s))
            if self.pauses:
                spent_s = self._pause(left_s)
            else:
                train_s = left_s if every is None else min(left_s, every - self._unsaved_s)
                spent_s = self._train(now_s, train_s)
                gpu_s = spent_s * self.num_gpus
                self.gpu_seconds += gpu_s
                self._unsaved_s += spent_s
                self._unsaved_gpu_s += gpu_s
                self._choose()
            now_s, left_s = now_s + spent_s, left_s - spent_s

    def _pause(self, left_s: float) -> float:
        pause = self.pauses[0]
        spent_s = min(pause.left_s, left_s)
        pause.left_s -= spent_s
        if pause.left_s <= 0:
            self.pauses.pop(0)
        self._spend(spent_s, step=pause.step, held=pause.held)
        return spent_s

    def _spend(self, spent_s: float, *, step: str, held: bool = True) -> None:
        """Account for a time without progress."""
        self.paused_s[step] = self.paused_s.get(step, 0.0) + spent_s
        if held:
            self.gpu_seconds += spent_s * self.num_gpus
            self.lost_gpu_seconds += spent_s * self.num_gpus

    def _save(self) -> None:
        self._saved = (self.epoch, self.progress, self._useless)
        self._unsaved_s = self._unsaved_gpu_s = 0.0

    def _train(self, now_s: float, left_s: float) -> float:
        """Train to the end of the epoch, at most for `left_s`; return how long it took."""
        rate = self._measure()
        end = self.application.epoch_end(self.epoch)
        gained = rate * left_s
        if self.progress + gained < end:
            self.progress += gained
            self._useless += gained * (1.0 - self._useful_share)
            return left_s
        self._useless += (end - self.progress) * (1.0 - self._useful_share)
        spent_s = (end - self.progress) / rate
        if not self.exact:
            spent_s = round(spent_s)
        self.epoch += 1
        self.progress = end
        if self.epoch == self.application.num_epochs:
            self.finished_s = now_s + spent_s
        return spent_s

    def _measure(self) -> float:
        """Return progress per second with the present batch, and remember what an agent would measure."""
        batch, epoch = self.batch, self.epoch
        assert batch is not None
        on = (self.pieces, batch, self.gpu_type, self.speed, self.interference)
        if on != self._trained_on:
            self._step_s = self._observe(batch)
            self._trained_on = on
        elif epoch == self._trained_in:
            return self._rate
        application, batch_size = self.application, batch.global_batch_size
        self.statistics = application.statistics(batch_size, epoch)
        self._useful_share = application.useful_share(batch_size, epoch)
        gained = application.step_progress(batch_size, epoch)
        self._trained_in, self._rate = epoch, gained / self._step_s * (1.0 - self.interference)
        return self._rate

    def _observe(self, batch: BatchChoice) -> float:
        """Return the seconds of a step, and remember what of it an agent would measure."""
        placement, atomic = self.placement, batch.atomic_batch_size
        try:
            time = self.application.step_time(placement, atomic)
        except TraceError as error:
            raise TraceError(f"job {self.job.name}: {error}") from None
        pass_s = time.pass_s / self.speed
        step_s = time.step_s if self.speed == 1.0 else pass_s + time.sync_s
        situation = (len(placement), self.num_gpus, atomic)
        seen = self.seen.setdefault(self.gpu_type, {})
        if situation not in seen or self.noisy is not None:
            self.num_measured += 1
            truth = Observation(
                num_nodes=len(placement),
                num_gpus=self.num_gpus,
                atomic_batch_size=atomic,
                grad_time_s=pass_s,
                iter_time_s=step_s,
            )
            seen[situation] = truth if self.noisy is None else self.noisy.measure(truth, self.gpu_type)
        return step_s + pass_s * batch.accumulation_steps


ChooseBatch: TypeAlias = Callable[[SimulatedJob], BatchChoice]
