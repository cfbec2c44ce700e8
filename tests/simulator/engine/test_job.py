"""One job by itself: when its batch is chosen, and its progress on its GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator import SimulatedJob
from tests.simulator.builders import made_application, made_job

WHOLE = BatchChoice(global_batch_size=8, atomic_batch_size=8, accumulation_steps=0)
DOUBLE = BatchChoice(global_batch_size=16, atomic_batch_size=8, accumulation_steps=0)


def test_that_a_batch_is_chosen_when_its_inputs_change(tmp_path: Path) -> None:
    asked: list[tuple[int, int, int]] = []

    def choose(job: SimulatedJob) -> BatchChoice:
        asked.append((job.num_gpus, job.epoch, sum(map(len, job.measured.by_type.values()))))
        return WHOLE if job.num_gpus == 1 else DOUBLE

    job = SimulatedJob(
        job=made_job("one"), application=made_application(tmp_path), choose_batch=choose, adaptive=True
    )
    job.reallocate(((0, 1),), now_s=0.0)
    for round_ in range(3):
        job.advance(10.0 * round_, 10.0)
    # At the start, and when the first step was measured; then nothing is new.
    assert asked == [(1, 0, 0), (1, 0, 1)]
    job.reallocate(((0, 1), (1, 1)), now_s=30.0)
    job.advance(30.0, 10.0)
    assert asked[2:] == [(2, 0, 1), (2, 0, 2)]
    assert job.batch == DOUBLE
    while job.epoch == 0:
        job.advance(40.0, 1.0)
    job.advance(50.0, 1.0)
    assert asked[4:] == []  # the gradients of this application's epochs are all the same


def test_that_a_job_on_other_gpus_has_their_rate(tmp_path: Path) -> None:
    """A step makes progress 1: it takes 1 s on one GPU, 0.5 s on four, and half on GPUs twice as fast."""
    job = SimulatedJob(
        job=made_job("one"),
        application=made_application(tmp_path),
        choose_batch=lambda job: WHOLE,
        adaptive=True,
    )
    made = []
    for allocation, speed in ((((0, 1),), 1.0), (((0, 4),), 1.0), (((0, 1),), 1.0), (((0, 1),), 2.0)):
        job.reallocate(allocation, now_s=0.0, speed=speed)
        assert (job.num_gpus, job.placement) == (sum(gpus for _, gpus in allocation), (allocation[0][1],))
        before = job.progress
        job.advance(0.0, 4.0)
        made.append(job.progress - before)
    assert made == [4.0, 8.0, 4.0, 8.0]


@pytest.mark.parametrize(("work", "end_s"), [(1.0, 150), (3.0, 450.75), (0.004, 0.601)])
def test_that_a_job_trains_as_long_as_its_work(tmp_path: Path, work: float, end_s: float) -> None:
    """Epochs of 100 and 50.25 s; those of a job with other work are not rounded to seconds."""
    job = SimulatedJob(
        job=replace(made_job("one"), work=work),
        application=made_application(tmp_path),
        choose_batch=lambda job: WHOLE,
        adaptive=True,
    )
    job.reallocate(((0, 1),), now_s=0.0)
    job.advance(0.0, 1000.0)
    assert job.finished_s == pytest.approx(end_s)
