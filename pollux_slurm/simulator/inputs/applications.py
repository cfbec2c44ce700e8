"""Applications: the measured step times, gradient statistics and epochs that a simulation uses as the truth.

`Application` is the interface; `site/measured_jobs.py` implements it with a site's own jobs. This module
reads traces in the format of the Pollux artifact (OSDI 2021): `placements.csv` (step times on placements of 1
to 4 nodes), `scalability.csv` (on more nodes), and `validation-B.csv` (one row per epoch of a whole run at
batch size B).
"""

from __future__ import annotations

import functools
import math
import operator
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from pollux_slurm.errors import TraceError
from pollux_slurm.goodput import gain
from pollux_slurm.model import BatchLimits, GradientStatistics
from pollux_slurm.simulator.inputs.csv_tables import numbers, read_columns, whole_numbers
from pollux_slurm.simulator.inputs.interpolation import LinearInterpolator, linear_interpolator

# The number of GPUs on each node of an allocation, in its order.
Placement = tuple[int, ...]
# Local batch sizes, ascending, and (step, sync) seconds of each.
_Table: TypeAlias = tuple[list[float], list[list[float]]]

# Constants of the artifact's applications; others train for all epochs of their shortest run.
_NUM_EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
_MAX_ATOMIC = {"yolov3": 8}
# The artifact's limits: no trace has more GPUs, and ncf always runs on one GPU with this batch.
_MOST_GPUS = 64
_FIXED_BATCH = {"ncf": 32768}
_PLACEMENT = re.compile("[1-9]+")
# No step time was measured on more nodes.
_MOST_NODES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one step with a single micro-batch, and the part of them spent synchronising."""

    step_s: float
    sync_s: float

    @property
    def micro_batch_s(self) -> float:
        """Seconds of one micro-batch without synchronisation."""
        return self.step_s - self.sync_s


class Application(Protocol):
    """The truth about one application. Batch sizes in examples; progress in units of M0.

    `batch_sizes` were measured, in ascending order; `limits` are its user's. A job may have `least_gpus` to
    `most_gpus`, and with a `fixed_batch` only that batch. Methods raise `TraceError` for what was never
    measured.
    """

    name: str
    num_epochs: int
    batch_sizes: tuple[int, ...]
    limits: BatchLimits
    min_atomic: int
    max_atomic: int
    least_gpus: int
    most_gpus: int
    fixed_batch: int | None

    @property
    def initial_batch_size(self) -> int: ...

    @property
    def max_batch_size(self) -> int: ...

    def step_time(self, placement: Placement, atomic_batch_size: int) -> StepTime:
        """Return the time of a step with `placement` GPUs per node."""
        ...

    def statistics(self, batch_size: int, epoch: int) -> GradientStatistics:
        """Return the gradient statistics of an epoch at a batch size."""
        ...

    def step_progress(self, batch_size: int, epoch: int) -> float:
        """Return the progress of a step at a batch size."""
        ...

    def useful_part(self, batch_size: int, epoch: int) -> float:
        """Return the useful part of that progress, compared with the initial batch size."""
        ...

    def iterations(self, batch_size: int, epoch: int) -> float:
        """Return how many steps a run at a batch size takes to the end of `epoch`, counted from 0."""
        ...

    def epoch_end(self, epoch: int) -> float:
        """Return the progress at which `epoch`, counted from 0, ends."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Epochs:
    """A whole run at one batch size, by epoch: cumulative progress and steps, gradient statistics."""

    progress: Sequence[float]
    iterations: Sequence[float]
    sqr: Sequence[float]
    var: Sequence[float]


class TracedApplication:
    """An `Application` read from traces.

    Its epochs end at a given progress, so all progress is useful.
    """

    least_gpus = 1

    def __init__(
        self,
        name: str,
        *,
        runs: dict[int, _Epochs],
        measured: dict[Placement, _Table],
        interpolated: Callable[[], LinearInterpolator],
        atomic_bounds: tuple[int, int],
        num_epochs: int,
    ) -> None:
        self.name, self.num_epochs = name, num_epochs
        self.batch_sizes = tuple(sorted(runs))
        self.min_atomic, self.max_atomic = atomic_bounds
        self.fixed_batch = _FIXED_BATCH.get(name)
        self.most_gpus = min(_MOST_GPUS, self.max_batch_size // self.min_atomic)
        if self.fixed_batch is not None:
            self.most_gpus = 1
        self.limits = BatchLimits(
            initial_batch_size=self.initial_batch_size,
            max_batch_size=self.max_batch_size,
            min_atomic=self.min_atomic,
            max_atomic=self.max_atomic,
            accumulation=True,
        )
        self._runs, self._measured = runs, measured
        self._most_a_node = max(map(max, measured))
        self._interpolated = functools.cache(interpolated)
        self._step_times: dict[tuple[Placement, int], StepTime] = {}
        self._statistics: dict[tuple[int, int], GradientStatistics] = {}
        self._progress: dict[tuple[int, int], float] = {}
        self._ends: list[float] = list(
            map(min, zip(*(run.progress[:num_epochs] for run in runs.values()), strict=True))
        )

    @property
    def initial_batch_size(self) -> int:
        return self.batch_sizes[0]

    @property
    def max_batch_size(self) -> int:
        return self.batch_sizes[-1]

    def step_time(self, placement: Placement, atomic_batch_size: int) -> StepTime:
        """Return the time of a step with `placement` GPUs per node.

        On a measured placement, it is interpolated between the measured batch sizes; on others, over (nodes,
        replicas, local batch size). A node with more GPUs than any trace has is treated as several nodes of
        the largest measured size.
        """
        key = (placement, atomic_batch_size)
        found = self._step_times.get(key)
        if found is None:
            found = self._measured_step_time(placement, atomic_batch_size)
            if found is None and max(placement) > self._most_a_node:
                cut = tuple(part for gpus in placement for part in _cut(gpus, self._most_a_node))
                found = self._measured_step_time(cut, atomic_batch_size)
            if found is None:
                raise TraceError(
                    f"{self.name}: the traces have no step time on {'+'.join(map(str, placement))} GPUs with "
                    f"{atomic_batch_size} examples each"
                )
            self._step_times[key] = found
        return found

    def _measured_step_time(self, placement: Placement, atomic_batch_size: int) -> StepTime | None:
        normal = min(placement[i:] + placement[:i] for i in range(len(placement)))
        if normal in self._measured:
            sizes, times = self._measured[normal]
            if sizes[0] <= atomic_batch_size <= sizes[-1]:
                step_s, sync_s = _interpolate(atomic_batch_size, sizes, times)
                return StepTime(step_s=step_s, sync_s=sync_s)
        else:
            at = (min(len(placement), _MOST_NODES), sum(placement), atomic_batch_size)
            step_s, sync_s = self._interpolated()(at)
            if math.isfinite(step_s):
                return StepTime(step_s=step_s, sync_s=sync_s)
        return None

    def statistics(self, batch_size: int, epoch: int) -> GradientStatistics:
        """Return the gradient statistics of an epoch, interpolated between measured batch sizes."""
        key = (batch_size, epoch)
        found = self._statistics.get(key)
        if found is None:
            sqr, var = self._between(batch_size, lambda run: (run.sqr[epoch], run.var[epoch]))
            found = self._statistics[key] = GradientStatistics(sqr=sqr, var=var)
        return found

    def step_progress(self, batch_size: int, epoch: int) -> float:
        """Return the progress of a step at a batch size, in units of M0."""
        key = (batch_size, epoch)
        found = self._progress.get(key)
        if found is None:
            statistics = self.statistics(batch_size, epoch)
            found = self._progress[key] = float(gain(statistics, self.initial_batch_size, batch_size))
        return found

    def useful_part(self, batch_size: int, epoch: int) -> float:
        return 1.0

    def iterations(self, batch_size: int, epoch: int) -> float:
        """Return how many steps a run at a batch size takes to the end of `epoch`, counted from 0."""
        return self._between(batch_size, lambda run: (run.iterations[epoch],))[0]

    def _between(self, batch_size: int, values: Callable[[_Epochs], Sequence[float]]) -> Sequence[float]:
        above = bisect_left(self.batch_sizes, batch_size)
        if above == len(self.batch_sizes) or batch_size < self.batch_sizes[0]:
            raise TraceError(f"{self.name}: no run had a batch size around {batch_size}")
        high = self.batch_sizes[above]
        if high == batch_size:
            return values(self._runs[high])
        low = self.batch_sizes[above - 1]
        return [
            ((batch_size - low) * at_high + (high - batch_size) * at_low) / (high - low)
            for at_low, at_high in zip(values(self._runs[low]), values(self._runs[high]), strict=True)
        ]

    def epoch_end(self, epoch: int) -> float:
        """Return the progress at which `epoch`, counted from 0, ends: the least over all runs."""
        return self._ends[epoch]


def _cut(gpus: int, most: int) -> Placement:
    """Split `gpus` over nodes of at most `most`."""
    whole, rest = divmod(gpus, most)
    return (most,) * whole + ((rest,) if rest else ())


def _interpolate(size: float, sizes: Sequence[float], times: Sequence[Sequence[float]]) -> list[float]:
    """Return the times at a size within `sizes`, like numpy's `interp`."""
    above = bisect_right(sizes, size)
    if above == len(sizes):
        return list(times[-1])
    low, high, part = sizes[above - 1], sizes[above], size - sizes[above - 1]
    return [
        (after - before) / (high - low) * part + before
        for before, after in zip(*times[above - 1 : above + 1], strict=True)
    ]


def read_applications(folder: Path) -> dict[str, Application]:
    """Read the traces of all applications, by name, each from a folder in `folder`. Raises `TraceError`."""
    if not folder.is_dir():
        raise TraceError(f"{folder}: no such folder; expected one with a folder for each application")
    folders = sorted(path for path in folder.iterdir() if (path / "placements.csv").is_file())
    if not folders:
        raise TraceError(f"{folder}: no APPLICATION/placements.csv in it")
    applications: dict[str, Application] = {path.name: read_application(path) for path in folders}
    return applications


def read_application(folder: Path) -> TracedApplication:
    """Read the traces of one application from its folder. Raises `TraceError`."""
    runs = _read_runs(folder)
    measured = _by_placement(folder / "placements.csv")
    smallest = min(int(sizes[0]) for sizes, _ in measured.values())
    largest = max(int(sizes[-1]) for sizes, _ in measured.values())
    name = folder.name
    shortest = min(len(run.progress) for run in runs.values())
    num_epochs = _NUM_EPOCHS.get(name, shortest)
    if num_epochs > shortest:
        raise TraceError(f"{folder}: {num_epochs} epochs expected, a validation file has only {shortest}")
    return TracedApplication(
        name,
        runs=runs,
        measured=measured,
        interpolated=functools.partial(_interpolator, folder, measured),
        atomic_bounds=(smallest, _MAX_ATOMIC.get(name, largest)),
        num_epochs=num_epochs,
    )


def _read_runs(folder: Path) -> dict[int, _Epochs]:
    runs = {}
    columns = ("progress", "iteration", "grad_sqr", "grad_var")
    for file in sorted(folder.glob("validation-*.csv")):
        found = re.fullmatch(r"validation-(\d+)\.csv", file.name)
        if found is None or int(found[1]) < 1:
            raise TraceError(f"{file}: expected validation-BATCHSIZE.csv")
        progress, iterations, sqr, var = (
            numbers(file, column, texts)
            for column, texts in zip(columns, read_columns(file, columns), strict=True)
        )
        if not progress:
            raise TraceError(f"{file}: no epochs")
        if not all(map(operator.lt, (0.0, *progress), progress)):
            raise TraceError(f"{file}: progress counts from the start of the run, so it must rise each epoch")
        runs[int(found[1])] = _Epochs(progress=progress, iterations=iterations, sqr=sqr, var=var)
    if not runs:
        raise TraceError(f"{folder}: no validation-BATCHSIZE.csv; expected the traces of one application")
    return runs


def _by_placement(file: Path) -> dict[Placement, _Table]:
    """Return the measured step times by placement."""
    found: dict[Placement, list[tuple[int, float, float]]] = {}
    texts, sizes, steps, syncs = read_columns(file, ("placement", "local_bsz", "step_time", "sync_time"))
    placements = {text: tuple(map(int, text)) if _PLACEMENT.fullmatch(text) else () for text in set(texts)}
    if () in placements.values():
        text = next(text for text in texts if not placements[text])
        raise TraceError(f"{file}: placement is {text!r}; expected a digit for each node")
    rows = zip(whole_numbers(file, "local_bsz", sizes, low=1), *_times(file, steps, syncs), strict=True)
    for text, row in zip(texts, rows, strict=True):
        found.setdefault(placements[text], []).append(row)
    if not found:
        raise TraceError(f"{file}: no measurements")
    tables = {}
    for placement, values in found.items():
        values.sort()
        tables[placement] = (
            [float(size) for size, _, _ in values],
            [[step_s, sync_s] for _, step_s, sync_s in values],
        )
    return tables


def _times(file: Path, steps: Sequence[str], syncs: Sequence[str]) -> tuple[list[float], list[float]]:
    """Return the seconds of each step, and the part of them spent synchronising."""
    step_s, sync_s = numbers(file, "step_time", steps), numbers(file, "sync_time", syncs)
    if not all(map(operator.lt, sync_s, step_s)):
        step, sync = next(pair for pair in zip(steps, syncs, strict=True) if float(pair[1]) >= float(pair[0]))
        raise TraceError(f"{file}: step_time is {step!r}; expected more than sync_time, which is {sync!r}")
    return step_s, sync_s


def _interpolator(folder: Path, measured: dict[Placement, _Table]) -> LinearInterpolator:
    """Return (nodes, replicas, local batch size) → (step, sync) seconds.

    The points are the means of the measured placements, in ascending order, then `scalability.csv`: the
    triangulation of such a grid depends on the order of its points.
    """
    groups: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for placement, (sizes, times) in measured.items():
        for size, (step_s, sync_s) in zip(sizes, times, strict=True):
            groups.setdefault((len(placement), sum(placement), int(size)), []).append((step_s, sync_s))
    points: list[tuple[int, int, int]] = sorted(groups)
    values = [[sum(times) / len(times) for times in zip(*groups[point], strict=True)] for point in points]
    file = folder / "scalability.csv"
    columns = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    *where, step_times, sync_times = read_columns(file, columns)
    points += zip(
        *(whole_numbers(file, column, texts, low=1) for column, texts in zip(columns, where, strict=False)),
        strict=True,
    )
    values += map(list, zip(*_times(file, step_times, sync_times), strict=True))
    try:
        return linear_interpolator(np.array(points, dtype=np.float64), np.array(values))
    except ValueError as error:
        raise TraceError(f"{folder}: step times cannot be interpolated: {error}") from None
