"""The main loop: when jobs take part in rounds, how long they take, what a move costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.errors import SimulationError
from pollux_slurm.simulator import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.batch_splits import split_batch
from tests.simulator.builders import made_application, made_job
from tests.simulator.scripted import run


def one_gpu_each(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
    return {job.job.name: ((0, 1),) for job in jobs[:4]}


def test_that_a_lone_job_takes_what_its_epochs_take(tmp_path: Path) -> None:
    """Seen at 60 s, 30 s until the first step, 100 and 50.25 steps of 1 s: the last ends after 50 s."""
    (job,) = run(tmp_path, one_gpu_each, made_job("a", at_s=5)).jobs
    assert job.finished_s == 60 + 30 + 100 + 50
    assert (job.num_restarts, job.gpu_seconds, job.lost_gpu_seconds) == (0, 180.0, 30.0)


def test_that_a_job_submitted_at_a_round_takes_part_in_it(tmp_path: Path) -> None:
    results = [run(tmp_path / str(at), one_gpu_each, made_job("a", at_s=at)).jobs[0] for at in (60.0, 60.5)]
    assert [job.finished_s for job in results] == [240, 300]


def test_that_a_larger_batch_gains_less_than_its_size(tmp_path: Path) -> None:
    """At 32 on two GPUs: one pass of 16 examples in 0.5 s, gain (0.75 + 1)/(0.75·8/32 + 1) in epoch 0."""
    (job,) = run(tmp_path, lambda *_: {"a": ((0, 2),)}, made_job("a", batch_size=32)).jobs
    gain = 1.75 / (0.75 / 4 + 1)
    assert job.finished_s == pytest.approx(90 + 150.25 * 0.5 / gain, abs=1)


def test_that_one_replica_with_a_larger_batch_takes_two_micro_batches(tmp_path: Path) -> None:
    application = made_application(tmp_path)
    split = split_batch(application, 10, 1)
    assert (split.atomic_batch_size, split.accumulation_steps) == (5, 1)
    assert split_batch(application, 8, 1).accumulation_steps == 0
    assert split_batch(application, 32, 3).global_batch_size <= 32, "never above the largest"


def test_that_a_move_costs_the_delay_and_counts(tmp_path: Path) -> None:
    def moved_once(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        return {"a": ((0, 1),) if now_s < 120 else ((1, 1),)}

    (job,) = run(tmp_path, moved_once, made_job("a")).jobs
    assert (job.finished_s, job.num_restarts) == (60 + 2 * 30 + 150, 1)


def test_that_losing_all_gpus_costs_nothing_by_itself(tmp_path: Path) -> None:
    def paused(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        return {} if now_s == 120 else {"a": ((0, 1),)}

    (job,) = run(tmp_path, paused, made_job("a")).jobs
    assert (job.finished_s, job.num_restarts) == (60 + 60 + 2 * 30 + 150, 1)
    assert job.lost_gpu_seconds == 60.0


def test_that_the_gpus_of_a_finished_job_are_free_at_the_next_round(tmp_path: Path) -> None:
    def first_come(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        return {jobs[0].job.name: ((0, 4),)}

    first, second = run(tmp_path, first_come, made_job("a"), made_job("b")).jobs
    assert first.finished_s is not None
    assert first.finished_s < 180
    assert second.finished_s == pytest.approx(180 + first.finished_s - 60)


@pytest.mark.parametrize("allocation", [((2, 1),), ((0, 5),), ((0, 0),), ((-1, 1),), ((0, 3), (0, 2))])
def test_that_an_impossible_allocation_is_refused(tmp_path: Path, allocation: GpusByNode) -> None:
    with pytest.raises(SimulationError):
        run(tmp_path, lambda *_: {"a": allocation}, made_job("a"))


def test_that_a_workload_that_never_ends_raises(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="1 jobs have not ended"):
        run(tmp_path, lambda *_: {}, made_job("a"), cluster=Cluster(longest_s=3600))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a"}, "two jobs are called 'a'"),
        ({"application": "gpt"}, "job b: no traces of application 'gpt' \\(there are: made\\)"),
        ({"submitted_s": float("nan")}, "job b needs a time"),
        ({"num_replicas": 0}, "job b needs a time"),
    ],
)
def test_that_an_impossible_job_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    second = dataclasses.replace(made_job("b"), **change)
    with pytest.raises(SimulationError, match=message):
        run(tmp_path, one_gpu_each, made_job("a"), second)


@pytest.mark.parametrize(
    "options",
    [
        {"num_nodes": 0},
        {"gpus_per_node": 0},
        {"interval_s": 0.0},
        {"interval_s": float("nan")},
        {"interval_s": float("inf")},
        {"restart_delay_s": -1.0},
    ],
)
def test_that_an_impossible_cluster_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SimulationError):
        Cluster(**options)
