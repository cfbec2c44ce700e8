"""The lower bound: below every schedule there is, and near those that are known to be the best."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator import Application, Cluster, SimulatedJob, WorkloadJob, read_application, simulate
from pollux_slurm.simulator.bound.dual_bound import average_bound
from pollux_slurm.simulator.bound.speeds import epoch_seconds, in_whole_seconds, make_options
from pollux_slurm.simulator.engine.job import Interruption
from pollux_slurm.simulator.engine.measurements import JobMeasurements
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.inputs.batch_splits import split_batch
from pollux_slurm.simulator.policies import POLICIES, SHARING
from tests.published import traces_dir
from tests.simulator.builders import made_application, made_job

# Two GPUs are used, whatever more there are.
ONE_NODE = Cluster(num_nodes=1, gpus_per_node=2, interval_s=30.0, restart_delay_s=10.0)


def fastest_batch(job: SimulatedJob) -> BatchChoice:
    """Return the best batch of the made application: 8 on one GPU, 24 on two."""
    return split_batch(job.application, 8 if job.num_gpus == 1 else 24, job.num_gpus)


class AllSchedules:
    """Try every allocation in every round: the best sum of completion times of a few short jobs."""

    def __init__(self, jobs: list[WorkloadJob], application: Application, cluster: Cluster) -> None:
        self._cluster = cluster
        self.best_s = math.inf
        start = [
            SimulatedJob(job=job, application=application, choose_batch=fastest_batch, adaptive=True)
            for job in jobs
        ]
        self._try(start, cluster.interval_s)

    def _try(self, jobs: list[SimulatedJob], now_s: float) -> None:
        if self._least(jobs, now_s) >= self.best_s:
            return
        left = [job for job in jobs if job.finished_s is None]
        if not left:
            self.best_s = self._least(jobs, now_s)
            return
        for counts in self._shares(len(left)):
            if any(count and job.job.submitted_s > now_s for count, job in zip(counts, left, strict=True)):
                continue
            moved = [copied(job) for job in left]
            for count, job in zip(counts, moved, strict=True):
                allocation = ((0, count),) if count else ()
                if allocation != job.allocation:
                    restart = Interruption(kind="restart", left_s=self._cluster.restart_delay_s)
                    job.reallocate(allocation, now_s=now_s, interruptions=[restart])
                job.advance(now_s, self._cluster.interval_s)
            ended = [job for job in jobs if job.finished_s is not None]
            self._try(ended + moved, now_s + self._cluster.interval_s)

    def _shares(self, num_jobs: int) -> Iterator[tuple[int, ...]]:
        most = self._cluster.gpus_per_node
        every = itertools.product(range(most + 1), repeat=num_jobs)
        return (counts for counts in sorted(every, reverse=True) if sum(counts) <= most)

    def _least(self, jobs: list[SimulatedJob], now_s: float) -> float:
        ends = (max(now_s, job.job.submitted_s) if job.finished_s is None else job.finished_s for job in jobs)
        return sum(end - job.job.submitted_s for end, job in zip(ends, jobs, strict=True))


def copied(job: SimulatedJob) -> SimulatedJob:
    twin = copy.copy(job)
    twin.interruptions = [copy.copy(one) for one in job.interruptions]
    twin.measured = JobMeasurements()
    twin.interrupted_s = {}
    return twin


@pytest.mark.parametrize(
    ("works", "submitted_s", "delay_s"),
    [
        ((0.3, 0.3), (0, 0), 10.0),
        ((1.0, 0.3), (0, 40), 10.0),
        ((0.5, 0.5, 0.2), (0, 0, 25), 5.0),
        ((0.2, 0.4, 0.6), (0, 5, 10), 0.0),
        ((0.8, 0.4), (20, 0), 45.0),
    ],
)
def test_that_no_schedule_of_a_few_jobs_is_below_the_bound(
    tmp_path: Path, works: tuple[float, ...], submitted_s: tuple[float, ...], delay_s: float
) -> None:
    cluster = replace(ONE_NODE, restart_delay_s=delay_s)
    jobs = [
        replace(made_job(f"{index}", at_s=at_s), work=work)
        for index, (work, at_s) in enumerate(zip(works, submitted_s, strict=True))
    ]
    application = made_application(tmp_path)
    best_s = AllSchedules(jobs, application, cluster).best_s / len(jobs)
    bound_s = average_bound(jobs, {"made": application}, cluster)
    assert 0.55 * best_s < bound_s <= best_s


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in {"external", *SHARING}])
def test_that_no_policy_is_below_the_bound(tmp_path: Path, policy: str) -> None:
    """Twelve jobs for four GPUs, at random times, and one that begins when all is done."""
    rng = np.random.default_rng(5)
    jobs = [
        made_job(f"{index}", at_s=float(at_s), num_replicas=1 + index % 2, batch_size=(8, 32)[index % 2])
        for index, at_s in enumerate(rng.integers(0, 400, 12))
    ]
    jobs.append(made_job("last", at_s=4000.0))
    made = {"made": made_application(tmp_path)}
    settings = RunSettings(policy=policy, num_nodes=2, gpus_per_node=2, interval_s=20, restart_delay_s=8)
    result = simulate(jobs, made, settings.make_policy(), settings.cluster())
    ended = [job.finished_s - job.job.submitted_s for job in result.jobs if job.finished_s is not None]
    assert len(ended) == len(jobs)
    assert average_bound(jobs, made, settings.cluster()) <= np.mean(ended)


@pytest.mark.parametrize("num_jobs", [1, 4])
def test_that_the_bound_is_near_where_each_job_has_all_that_it_can_use(tmp_path: Path, num_jobs: int) -> None:
    """Each starts at 60 s, restarts for 30, and trains 45 on two GPUs: four fill eight GPUs."""
    made = {"made": made_application(tmp_path)}
    jobs = [made_job(f"{index}") for index in range(num_jobs)]
    bound_s = average_bound(jobs, made, Cluster(num_nodes=2))
    assert 0.96 * 135 < bound_s <= 135


def test_that_the_bound_is_near_for_equal_jobs_that_take_turns(tmp_path: Path) -> None:
    """On one GPU, the first ends at 240 s, and the k-th 180 s after the one before it."""
    made = {"made": made_application(tmp_path)}
    jobs = [made_job(f"{index}") for index in range(6)]
    cluster = Cluster(num_nodes=1, gpus_per_node=1)
    best_s = float(np.mean([60 + 180 * (place + 1) for place in range(6)]))
    bound_s = average_bound(jobs, made, cluster)
    assert 0.93 * best_s < bound_s <= best_s


def test_that_progress_of_many_batches_is_that_of_each() -> None:
    application = read_application(traces_dir() / "bert")
    sizes = [application.initial_batch_size, 100, 217, application.max_batch_size]
    found = application.step_progresses(sizes)
    for epoch, size in itertools.product(range(application.num_epochs), range(len(sizes))):
        assert found[epoch, size] == pytest.approx(application.step_progress(sizes[size], epoch))


def test_that_an_option_is_no_worse_than_any_number_of_gpus(tmp_path: Path) -> None:
    made = made_application(tmp_path)
    epoch_s = epoch_seconds(made, Cluster(num_nodes=4), [8, 32], 16)
    assert epoch_s[:, 0].tolist() == [100.0, 50.25]
    # At 24 in half a second; the variance is 1.5 there.
    assert epoch_s[:, 1] == pytest.approx(np.array([100.0, 50.25]) * 0.5 / (2.5 / 1.5))
    scaled = 80.0 / np.arange(1, 21) * np.ones((3, 1))
    options = make_options(scaled)
    assert options.num_gpus.tolist() == [*range(1, 13), 13, 15, 17, 19]
    assert options.epoch_s[-1].tolist() == [4.0] * 3
    assert make_options(epoch_s).num_gpus.tolist() == [1, 2], "more are no faster"


def test_that_rounding_is_in_favour_of_the_job() -> None:
    epoch_s = np.array([0.3, 1.2, 1.5, 1.6])
    assert in_whole_seconds(epoch_s, exactly=True).tolist() == [0.0, 1.0, 1.0, 1.6]
    assert in_whole_seconds(epoch_s, exactly=False) == pytest.approx(np.array([0.0, 0.7, 1.0, 1.1]))
