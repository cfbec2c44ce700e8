"""Step times of an application on one GPU type, from `placements.csv` and `scalability.csv` of its traces."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator.inputs.csv_tables import numbers, read_columns, whole_numbers
from pollux_slurm.simulator.inputs.interpolation import LinearInterpolator, linear_interpolator

# The number of GPUs on each node of an allocation, in its order.
Placement = tuple[int, ...]
# Local batch sizes, ascending, and (step, sync) seconds of each.
_Table: TypeAlias = tuple[list[float], list[list[float]]]

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


class MeasuredStepTimes:
    """The step times of one application, called `name` in errors, on GPUs of one type.

    `measured` are those by placement; others are interpolated between these and those of the file
    `scalability`.
    """

    def __init__(self, name: str, measured: dict[Placement, _Table], scalability: Path) -> None:
        self._name, self._measured, self._scalability = name, measured, scalability
        self._most_a_node = max(map(max, measured))
        # Local batch sizes of all placements, the largest first.
        self._sizes = sorted({int(size) for sizes, _ in measured.values() for size in sizes}, reverse=True)
        self._found: dict[tuple[Placement, int], StepTime] = {}

    @classmethod
    def read(cls, folder: Path, gpu_type: str = "") -> MeasuredStepTimes:
        """Read the files of a GPU type, or without one those of the plain nodes. Raises `TraceError`."""
        suffix = f"-{gpu_type}.csv" if gpu_type else ".csv"
        measured = _by_placement(folder / f"placements{suffix}")
        return cls(folder.name, measured, folder / f"scalability{suffix}")

    @property
    def atomic_bounds(self) -> tuple[int, int]:
        """The smallest and the largest measured local batch size."""
        tables = self._measured.values()
        return min(int(sizes[0]) for sizes, _ in tables), max(int(sizes[-1]) for sizes, _ in tables)

    def placements(self, num_gpus: int, num_nodes: int, gpus_per_node: int) -> set[Placement]:
        """Return placements of `num_gpus` GPUs with all step times that there are on such nodes.

        What was not measured has one step time for each number of nodes, where larger ones count as several.
        """
        found = {
            placement
            for placement in self._measured
            if sum(placement) == num_gpus and max(placement) <= gpus_per_node
        }
        cut = min(gpus_per_node, self._most_a_node)
        for size, most in {gpus_per_node: num_nodes, cut: num_nodes * -(-gpus_per_node // cut)}.items():
            least = -(-num_gpus // size)
            for nodes in range(least, max(min(num_gpus, most, _MOST_NODES), least) + 1):
                of_nodes = _compositions(num_gpus, nodes, size)
                others = (placement for placement in of_nodes if _normal(placement) not in self._measured)
                found.update(itertools.islice(others, 1))
        return found

    def step_time(self, placement: Placement, atomic_batch_size: int) -> StepTime:
        """Return the time of a step with `placement` GPUs per node.

        On a measured placement, it is interpolated between the measured batch sizes; on others, over (nodes,
        replicas, local batch size). A node with more GPUs than any trace has is treated as several nodes of
        the largest measured size. A batch above those measured there, but not above all, computes as long as
        the largest of them in proportion: traces may end at the largest global batch, not at the memory.
        """
        key = (placement, atomic_batch_size)
        found = self._found.get(key)
        if found is None:
            ways = [placement]
            if max(placement) > self._most_a_node:
                ways.append(tuple(part for gpus in placement for part in _cut(gpus, self._most_a_node)))
            for read in (self._measured_step_time, self._proportional_step_time):
                found = found or next(filter(None, (read(way, atomic_batch_size) for way in ways)), None)
            if found is None:
                raise TraceError(
                    f"{self._name}: the traces have no step time on {'+'.join(map(str, placement))} GPUs "
                    f"with {atomic_batch_size} examples each"
                )
            self._found[key] = found
        return found

    def _proportional_step_time(self, placement: Placement, atomic_batch_size: int) -> StepTime | None:
        """Return the time of the largest batch size measured there, its computation in proportion."""
        if atomic_batch_size > self._sizes[0]:
            return None
        for size in self._sizes:
            if size < atomic_batch_size:
                smaller = self._measured_step_time(placement, size)
                if smaller is not None:
                    micro_batch_s = smaller.micro_batch_s * atomic_batch_size / size
                    return StepTime(step_s=smaller.sync_s + micro_batch_s, sync_s=smaller.sync_s)
        return None

    def _measured_step_time(self, placement: Placement, atomic_batch_size: int) -> StepTime | None:
        normal = _normal(placement)
        if normal in self._measured:
            sizes, times = self._measured[normal]
            if sizes[0] <= atomic_batch_size <= sizes[-1]:
                step_s, sync_s = _interpolate(atomic_batch_size, sizes, times)
                return StepTime(step_s=step_s, sync_s=sync_s)
        else:
            at = (min(len(placement), _MOST_NODES), sum(placement), atomic_batch_size)
            step_s, sync_s = self._interpolated(at)
            if math.isfinite(step_s):
                return StepTime(step_s=step_s, sync_s=sync_s)
        return None

    @functools.cached_property
    def _interpolated(self) -> LinearInterpolator:
        return _interpolator(self._scalability, self._measured)


def _normal(placement: Placement) -> Placement:
    """Return the rotation of a placement under which it is measured."""
    return min(placement[i:] + placement[:i] for i in range(len(placement)))


def _compositions(gpus: int, nodes: int, most: int) -> Iterator[Placement]:
    """Yield all placements of `gpus` on `nodes` of at most `most`."""
    if nodes == 1:
        if gpus <= most:
            yield (gpus,)
        return
    for first in range(max(gpus - most * (nodes - 1), 1), min(gpus - nodes + 1, most) + 1):
        for rest in _compositions(gpus - first, nodes - 1, most):
            yield (first, *rest)


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


def _interpolator(file: Path, measured: dict[Placement, _Table]) -> LinearInterpolator:
    """Return (nodes, replicas, local batch size) → (step, sync) seconds.

    The points are the means of the measured placements, in ascending order, then those of `file`: the
    triangulation of such a grid depends on the order of its points.
    """
    groups: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for placement, (sizes, times) in measured.items():
        for size, (step_s, sync_s) in zip(sizes, times, strict=True):
            groups.setdefault((len(placement), sum(placement), int(size)), []).append((step_s, sync_s))
    points: list[tuple[int, int, int]] = sorted(groups)
    values = [[sum(times) / len(times) for times in zip(*groups[point], strict=True)] for point in points]
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
        raise TraceError(f"{file.parent}: step times cannot be interpolated: {error}") from None
