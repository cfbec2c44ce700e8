"""The least time that an application can train an epoch in, on each number of GPUs.

Legend: E epochs, N the most GPUs, B batches, O options; t (E, N) seconds of an epoch on 1 to N GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.errors import TraceError
from pollux_slurm.goodput import geometric_batches
from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.batch_splits import split_batch

FloatArray = npt.NDArray[np.float64]
# Up to so many GPUs, each number is an option of its own; above, those within a factor are one.
_EXACT_GPUS, _OPTION_WIDTH = 12, 1.1


def epoch_seconds(
    application: Application, cluster: Cluster, batch_sizes: Collection[int], num_gpus: int
) -> FloatArray:
    """Return t (E, N): over all placements, GPU types, and batches that policies of the simulator choose.

    `batch_sizes` are those of users. Where no batch was measured, t is infinite.
    """
    batches = {gpus: _batches(application, gpus, batch_sizes) for gpus in range(1, num_gpus + 1)}
    sizes = sorted({batch.global_batch_size for several in batches.values() for batch in several})
    gained = dict(zip(sizes, application.step_progresses(sizes).T, strict=True))
    ends = np.array([application.epoch_end(epoch) for epoch in range(application.num_epochs)])
    found = np.full((application.num_epochs, num_gpus), math.inf)
    for gpus, several in batches.items():
        fastest = np.zeros(application.num_epochs)
        for batch, step_s in zip(several, _step_seconds(application, cluster, gpus, several), strict=True):
            if math.isfinite(step_s):
                np.maximum(fastest, gained[batch.global_batch_size] / step_s, out=fastest)
        if fastest.all():
            found[:, gpus - 1] = np.diff(ends, prepend=0.0) / fastest
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """Numbers of GPUs (O,), ascending, and seconds of each epoch on them (O, E)."""

    num_gpus: npt.NDArray[np.int64]
    epoch_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """Return the seconds of the whole training on each option, (O,)."""
        return np.asarray(self.epoch_s.sum(axis=1), dtype=np.float64)

    def thinned(self, ratio: float) -> Options:
        """Return those whose numbers of GPUs are at least `ratio` apart."""
        kept: list[int] = []
        for row, gpus in enumerate(self.num_gpus.tolist()):
            if not kept or gpus >= ratio * self.num_gpus[kept[-1]]:
                kept.append(row)
        return Options(num_gpus=self.num_gpus[kept], epoch_s=self.epoch_s[kept])


def make_options(epoch_s: FloatArray) -> Options:
    """Return options that are no worse than any number of GPUs in t.

    Similar large numbers are one option: the fewest GPUs of them, and the least time. One that is never
    faster than another with fewer GPUs is left out.
    """
    gpus: list[int] = []
    seconds: list[FloatArray] = []
    low, most = 1, epoch_s.shape[1]
    while low <= most:
        high = low if low <= _EXACT_GPUS else min(int(low * _OPTION_WIDTH), most)
        best = epoch_s[:, low - 1 : high].min(axis=1)
        if np.isfinite(best).all() and not any((other <= best).all() for other in seconds):
            gpus.append(low)
            seconds.append(best)
        low = high + 1
    return Options(num_gpus=np.array(gpus, dtype=np.int64), epoch_s=np.array(seconds))


def in_whole_seconds(epoch_s: FloatArray, *, exactly: bool) -> FloatArray:
    """Return the least time of each epoch where its end is rounded to a second.

    `exactly` means that epochs begin at whole seconds, and therefore also end there.
    """
    rounded = np.ceil(epoch_s - 0.5) if exactly else epoch_s - 0.5
    return np.asarray(np.maximum(np.minimum(epoch_s, rounded), 0.0), dtype=np.float64)


def _batches(application: Application, num_gpus: int, batch_sizes: Collection[int]) -> list[BatchChoice]:
    """Return the batches of agents, of users, and of the epochs measured, on so many GPUs."""
    least = max(application.initial_batch_size, application.min_atomic * num_gpus)
    fixed = [least, *application.batch_sizes]
    if application.fixed_batch is not None:
        fixed = [application.fixed_batch]
    split = [split_batch(application, size, num_gpus) for size in {*fixed, *batch_sizes}]
    chosen = [] if application.fixed_batch is not None else geometric_batches(application.limits, num_gpus)
    return list(dict.fromkeys([*chosen, *(batch for batch in split if batch.atomic_batch_size > 0)]))


def _step_seconds(
    application: Application, cluster: Cluster, num_gpus: int, batches: Collection[BatchChoice]
) -> list[float]:
    """Return the least seconds of a step of each batch; infinite where it was not measured."""
    name = application.name
    speeds = {group.gpu_type: group.speed_of(name) for group in cluster.node_groups}
    found = [math.inf] * len(batches)
    for gpu_type, speed in speeds.items():
        if gpu_type in application.gpu_types:
            speed = 1.0
        for placement in application.placements(num_gpus, cluster.num_nodes, cluster.gpus_per_node, gpu_type):
            for place, batch in enumerate(batches):
                try:
                    time = application.step_time(placement, batch.atomic_batch_size, gpu_type)
                except TraceError:
                    continue
                micro_batch_s = time.micro_batch_s / speed
                step_s = time.sync_s + micro_batch_s * (1 + batch.accumulation_steps)
                found[place] = min(found[place], step_s)
    return found
