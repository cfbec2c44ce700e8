"""Applications: the measured step times, gradient statistics and epochs that a simulation uses as the truth.

`Application` is the interface; `site/measured_jobs.py` implements it with a site's own jobs. This module
reads traces in the format of the Pollux artifact (OSDI 2021): `placements.csv` (step times on placements of 1
to 4 nodes), `scalability.csv` (on more nodes), and `validation-B.csv` (one row per epoch of a whole run at
batch size B). `placements-TYPE.csv` and `scalability-TYPE.csv` are the same on GPUs of another type.
"""

from __future__ import annotations

import operator
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pollux_slurm.errors import TraceError
from pollux_slurm.goodput import gain
from pollux_slurm.model import BatchLimits, GradientStatistics
from pollux_slurm.simulator.inputs.csv_tables import numbers, read_columns
from pollux_slurm.simulator.inputs.step_times import MeasuredStepTimes, Placement, StepTime

__all__ = [
    "Application",
    "Placement",
    "StepTime",
    "TracedApplication",
    "read_application",
    "read_applications",
]

FloatArray = npt.NDArray[np.float64]

# Constants of the artifact's applications; others train for all epochs of their shortest run.
_NUM_EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
_MAX_ATOMIC = {"yolov3": 8}
# The artifact's limits: no trace has more GPUs, and ncf always runs on one GPU with this batch.
_MOST_GPUS = 64
_FIXED_BATCH = {"ncf": 32768}
_OF_TYPE = re.compile(r"placements-([A-Za-z0-9_.-]+)\.csv")


class Application(Protocol):
    """The truth about one application. Batch sizes in examples; progress in units of M0.

    `batch_sizes` were measured, in ascending order; `limits` are its user's. A job may have `least_gpus` to
    `most_gpus`, and with a `fixed_batch` only that batch. `gpu_types` have step times of their own; all
    others have those of the plain nodes. Methods raise `TraceError` for what was never measured.
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
    gpu_types: frozenset[str]

    @property
    def initial_batch_size(self) -> int: ...

    @property
    def max_batch_size(self) -> int: ...

    def step_time(self, placement: Placement, atomic_batch_size: int, gpu_type: str = "") -> StepTime:
        """Return the time of a step with `placement` GPUs per node."""
        ...

    def placements(
        self, num_gpus: int, num_nodes: int, gpus_per_node: int, gpu_type: str = ""
    ) -> Collection[Placement]:
        """Return placements of `num_gpus` GPUs that have all step times that there are on such nodes."""
        ...

    def statistics(self, batch_size: int, epoch: int) -> GradientStatistics:
        """Return the gradient statistics of an epoch at a batch size."""
        ...

    def step_progress(self, batch_size: int, epoch: int) -> float:
        """Return the progress of a step at a batch size."""
        ...

    def step_progresses(self, batch_sizes: Sequence[int]) -> FloatArray:
        """Return the progress of a step in each epoch and at each batch size, (E, B)."""
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

    Its epochs end at a given progress, so all progress is useful. `step_times` are by GPU type; those of the
    plain nodes are under the empty text.
    """

    least_gpus = 1

    def __init__(
        self,
        name: str,
        *,
        runs: dict[int, _Epochs],
        step_times: Mapping[str, MeasuredStepTimes],
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
        self.gpu_types = frozenset(gpu_type for gpu_type in step_times if gpu_type)
        self._runs, self._step_times = runs, step_times
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

    def step_time(self, placement: Placement, atomic_batch_size: int, gpu_type: str = "") -> StepTime:
        """Return the time of a step with `placement` GPUs per node."""
        return self._on(gpu_type).step_time(placement, atomic_batch_size)

    def placements(
        self, num_gpus: int, num_nodes: int, gpus_per_node: int, gpu_type: str = ""
    ) -> Collection[Placement]:
        """Return placements of `num_gpus` GPUs that have all step times that there are on such nodes."""
        return self._on(gpu_type).placements(num_gpus, num_nodes, gpus_per_node)

    def _on(self, gpu_type: str) -> MeasuredStepTimes:
        return self._step_times[gpu_type if gpu_type in self.gpu_types else ""]

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

    def step_progresses(self, batch_sizes: Sequence[int]) -> FloatArray:
        """Return the progress of a step in each epoch and at each batch size, (E, B)."""
        runs = [self._runs[size] for size in self.batch_sizes]
        found = []
        for epoch in range(self.num_epochs):
            sqr = np.interp(batch_sizes, self.batch_sizes, [run.sqr[epoch] for run in runs])
            var = np.interp(batch_sizes, self.batch_sizes, [run.var[epoch] for run in runs])
            rest = var * self.initial_batch_size / np.array(batch_sizes) + sqr
            found.append(np.divide(var + sqr, rest, out=np.ones_like(rest), where=rest > 0))
        return np.array(found)

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


def read_applications(folder: Path) -> dict[str, Application]:
    """Read the traces of all applications, by name, each from a folder in `folder`. Raises `TraceError`."""
    if not folder.is_dir():
        raise TraceError(f"{folder}: no such folder; expected one with a folder for each application")
    folders = sorted(path for path in folder.iterdir() if any(path.glob("placements*.csv")))
    if not folders:
        raise TraceError(f"{folder}: no APPLICATION/placements.csv in it")
    applications: dict[str, Application] = {path.name: read_application(path) for path in folders}
    return applications


def read_application(folder: Path) -> TracedApplication:
    """Read the traces of one application from its folder. Raises `TraceError`."""
    runs = _read_runs(folder)
    step_times = {
        gpu_type: MeasuredStepTimes.read(folder, gpu_type) for gpu_type in ("", *_gpu_types(folder))
    }
    bounds = [of_type.atomic_bounds for of_type in step_times.values()]
    smallest, largest = max(low for low, _ in bounds), min(high for _, high in bounds)
    if smallest > largest:
        raise TraceError(f"{folder}: no local batch size was measured on all GPU types")
    name = folder.name
    shortest = min(len(run.progress) for run in runs.values())
    num_epochs = _NUM_EPOCHS.get(name, shortest)
    if num_epochs > shortest:
        raise TraceError(f"{folder}: {num_epochs} epochs expected, a validation file has only {shortest}")
    return TracedApplication(
        name,
        runs=runs,
        step_times=step_times,
        atomic_bounds=(smallest, _MAX_ATOMIC.get(name, largest)),
        num_epochs=num_epochs,
    )


def _gpu_types(folder: Path) -> list[str]:
    """Return the GPU types with files of their own. Raises `TraceError` if there is none of plain nodes."""
    names = sorted(file.name for file in folder.glob("placements-*.csv"))
    if names and not (folder / "placements.csv").is_file():
        raise TraceError(
            f"{folder}: {names[0]}, but no placements.csv: copy placements-TYPE.csv and scalability-TYPE.csv "
            "of one type to placements.csv and scalability.csv; speeds are relative to it"
        )
    found = {name: _OF_TYPE.fullmatch(name) for name in names}
    for name, matched in found.items():
        if matched is None:
            raise TraceError(f"{folder / name}: a GPU type has letters, digits, and any of _.-")
    return [matched[1] for matched in found.values() if matched is not None]


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
