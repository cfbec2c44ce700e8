"""Finish-time fairness (Themis, NSDI 2020): what sharing the cluster cost each job.

ρ = completion time / completion time alone on a 1/J share of the cluster, where J is the mean number of jobs
between the job's submission and its end. At ρ ≤ 1 the job did at least as well as on an equal part of the
cluster; ρ = 3 means that it took three times as long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator.engine.cluster import SimulationResult
from pollux_slurm.simulator.engine.job import SimulatedJob
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.batch_splits import packed_step_time_s, split_batch


class AloneTimes:
    """How long applications train on a fixed number of GPUs of the measured type, packed on few nodes.

    In each epoch a job uses the measured batch size with the highest true useful progress per second.
    """

    def __init__(self, gpus_per_node: int) -> None:
        self._gpus_per_node = gpus_per_node
        self._whole: dict[tuple[str, int], _Alone | None] = {}
        self._epochs: dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]] = {}

    def training_s(self, application: Application, num_gpus: float) -> float | None:
        """Return the seconds of training on `num_gpus` GPUs, or on fewer where that is faster.

        Between whole numbers the training rate is linear; below one GPU it is that fraction of one GPU's.
        None where the traces have no step time on one GPU.
        """
        num_gpus = min(num_gpus, application.most_gpus)
        low = int(num_gpus)
        below = self._best(application, max(low, 1))
        if below is None or num_gpus <= 0:
            return None
        if low == 0:
            return below.time_s / num_gpus
        part = num_gpus - low
        above = self._best(application, low + 1) if part else below
        assert above is not None
        return 1 / ((1 - part) / below.time_s + part / above.time_s)

    def useful_rate(self, application: Application) -> float | None:
        """Return the mean useful progress per second on one GPU."""
        alone = self._best(application, 1)
        return None if alone is None else alone.useful / alone.time_s

    def _best(self, application: Application, most: int) -> _Alone | None:
        found = (self._on(application, num_gpus) for num_gpus in range(1, most + 1))
        return min(
            (one for one in found if one is not None), key=lambda one: one.time_s / one.useful, default=None
        )

    def _on(self, application: Application, num_gpus: int) -> _Alone | None:
        key = (application.name, num_gpus)
        if key not in self._whole:
            self._whole[key] = self._train(application, num_gpus)
        return self._whole[key]

    def _train(self, application: Application, num_gpus: int) -> _Alone | None:
        """Return the whole training on exactly `num_gpus`; each epoch takes whole seconds, as in a run."""
        steps = []
        for index, batch_size in enumerate(application.batch_sizes):
            batch = split_batch(application, batch_size, num_gpus)
            if batch.atomic_batch_size < application.min_atomic:
                continue
            split = (batch.atomic_batch_size, batch.accumulation_steps)
            try:
                steps.append((index, packed_step_time_s(application, num_gpus, self._gpus_per_node, *split)))
            except TraceError:
                continue
        if not steps:
            return None
        # `needed` `(E, B)`: steps of an epoch at each measured batch size; `steps` has the seconds of one.
        tried = [index for index, _ in steps]
        needed, useful = (found[:, tried] for found in self._by_epoch(application))
        times = needed * np.array([step_s for _, step_s in steps])
        chosen = (np.arange(len(times)), (times / useful).argmin(axis=1))
        time_s = float(np.maximum(np.round(times[chosen]), 1.0).sum())
        return _Alone(time_s=time_s, useful=float(useful[chosen].sum()))

    def _by_epoch(self, application: Application) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the steps and the useful progress of each epoch at each batch size, both `(E, B)`."""
        found = self._epochs.get(application.name)
        if found is None:
            ends = [application.epoch_end(epoch) for epoch in range(application.num_epochs)]
            lengths = np.diff(np.array(ends), prepend=0.0)
            gains = [
                [application.step_progress(size, epoch) for size in application.batch_sizes]
                for epoch in range(application.num_epochs)
            ]
            shares = [
                [application.useful_part(size, epoch) for size in application.batch_sizes]
                for epoch in range(application.num_epochs)
            ]
            found = lengths[:, None] / np.array(gains), lengths[:, None] * np.array(shares)
            self._epochs[application.name] = found
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alone:
    """A whole training alone: its seconds and its useful progress."""

    time_s: float
    useful: float


def alone_times(result: SimulationResult, times: AloneTimes) -> list[float | None]:
    """Return for each job its completion time alone on its share, in seconds; None without traces for it.

    It includes the wait for the next round and one start, as in the run. GPUs of several types are weighted
    by speed; nodes that are down or used by unmanaged jobs are not counted.
    """
    at = [record.at_s for record in result.rounds]
    jobs_sum = np.cumsum([0] + [record.num_jobs for record in result.rounds])
    free_sum = np.cumsum([0] + [record.gpus_up - record.gpus_unmanaged for record in result.rounds])
    num_gpus = sum(group.num_nodes * group.gpus_per_node for group in result.cluster.groups) or (
        result.cluster.num_nodes * result.cluster.gpus_per_node
    )
    measured = {name: _measured_gpus(result, name) for name in {job.application.name for job in result.jobs}}
    found: list[float | None] = []
    for job in result.jobs:
        first = bisect_left(at, job.job.submitted_s)
        last = max(bisect_left(at, _end(job)), first + 1)
        if first < len(at):
            mean_jobs = (jobs_sum[last] - jobs_sum[first]) / (last - first)
            mean_free = (free_sum[last] - free_sum[first]) / (last - first)
            waits_s = at[first] - job.job.submitted_s
        else:  # it came after the last round: it waited for none, and shared with nobody
            mean_jobs, mean_free, waits_s = 1, num_gpus, 0.0
        share = mean_free / num_gpus * measured[job.application.name] / mean_jobs
        training_s = times.training_s(job.application, float(share))
        if training_s is None:
            found.append(None)
            continue
        found.append(waits_s + _first_start_s(result, job) + training_s * job.job.work)
    return found


def mean_rate_alone(times: AloneTimes, application: Application) -> float | None:
    """Return the mean useful examples/s of an application on one GPU of the measured type."""
    rate = times.useful_rate(application)
    return None if rate is None else rate * application.initial_batch_size


def share_above_one(ratios: Sequence[float]) -> float | None:
    """Return the share of ratios above 1; None without ratios."""
    return sum(ratio > 1 for ratio in ratios) / len(ratios) if ratios else None


def _measured_gpus(result: SimulationResult, application: str) -> float:
    """Return the cluster's GPUs, as a number of GPUs of the measured type with the same speed."""
    groups = result.cluster.node_groups
    return float(sum(group.gpus_per_node * group.speed_of(application) for group in groups))


def _first_start_s(result: SimulationResult, job: SimulatedJob) -> float:
    delays = result.rules.delays
    if delays is None:
        return result.cluster.restart_delay_s
    return (
        delays.backfill_s + delays.start_s + delays.time_to_first_step_s(job.application.name, restore=False)
    )


def _end(job: SimulatedJob) -> float:
    assert job.finished_s is not None
    return job.finished_s
