"""Export from a store: epochs from useful progress, delays from the journal."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from pollux_slurm.goodput import iteration_time_s
from pollux_slurm.model import BatchChoice, GradientStatistics, JobState
from pollux_slurm.simulator.engine.cluster_rules import Delays
from pollux_slurm.simulator.site.export import (
    examples_per_epoch,
    export_queue,
    line_through,
    measure_delays,
    scaled_times,
    step_time_ratio,
)
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.store.contract.interface import RunPhase, Sample, Store
from tests.store.builders import (
    MODEL,
    T0,
    at,
    move_in_place,
    move_running_job,
    observation,
    registration,
    report,
    token_of,
)


def sample(
    epoch: int, progress: float, *, batch: int | None = 10, efficiency: float | None = 1.0, total: int = 4
) -> Sample:
    return Sample(
        at=T0 + timedelta(seconds=progress),
        batch=None
        if batch is None
        else BatchChoice(global_batch_size=batch, atomic_batch_size=batch, accumulation_steps=0),
        throughput=1.0,
        predicted_throughput=1.0,
        efficiency=efficiency,
        progress=progress,
        epoch=epoch,
        total_epochs=total,
    )


def test_that_examples_are_useful_progress_over_efficiency() -> None:
    """20 steps of 10 useful examples, then 10 more that took 20 each."""
    seen = [sample(0, 5.0), sample(2, 20.0), sample(4, 30.0, batch=40, efficiency=0.5)]
    assert examples_per_epoch(seen, 10) == pytest.approx((200 + 200) / 4)


def test_that_progress_that_a_run_repeats_counts_once() -> None:
    seen = [sample(1, 10.0), sample(2, 25.0), sample(2, 20.0), sample(3, 30.0), sample(4, 40.0)]
    assert examples_per_epoch(seen, 10) == pytest.approx(100)


def test_that_a_sample_without_efficiency_uses_its_batch() -> None:
    seen = [
        sample(1, 10.0, batch=20, efficiency=0.5),
        sample(2, 20.0, batch=None, efficiency=None),
        sample(4, 30.0, batch=10, efficiency=None),
    ]
    assert examples_per_epoch(seen, 10) == pytest.approx((200 + 200 + 100) / 4)


def test_that_an_unfinished_job_is_in_the_middle_of_its_epoch() -> None:
    assert examples_per_epoch([sample(1, 10.0), sample(3, 35.0)], 10) == pytest.approx(100)
    assert examples_per_epoch([sample(0, 9.0)], 10) is None
    assert examples_per_epoch([], 10) is None


def test_that_step_times_are_scaled_to_the_samples() -> None:
    seen = [
        dataclasses.replace(sample(1, 5.0), throughput=100.0, predicted_throughput=120.0),
        dataclasses.replace(sample(2, 9.0), throughput=50.0, predicted_throughput=50.0),
        dataclasses.replace(sample(2, 9.0), throughput=None, predicted_throughput=9.0),
    ]
    assert step_time_ratio(seen) == pytest.approx((1 / 100 + 1 / 50) / (1 / 120 + 1 / 50))
    assert step_time_ratio([]) == 1.0
    assert step_time_ratio([dataclasses.replace(seen[0], predicted_throughput=1e9)]) == 2.0
    assert MODEL.throughput is not None
    slower = scaled_times(MODEL.throughput, 1.5)
    assert iteration_time_s(slower, 2, 6, 64, 1) == pytest.approx(
        1.5 * iteration_time_s(MODEL.throughput, 2, 6, 64, 1)
    )


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([(1, 3.0), (2, 5.0), (4, 9.0)], (1.0, 2.0)),
        ([(2, 4.0), (2, 6.0)], (5.0, 0.0)),
        ([(1, 5.0), (4, 2.0)], (3.5, 0.0)),
        ([(1, 1.0), (2, 4.0)], (0.0, 1.8)),
    ],
)
def test_that_a_fitted_line_has_no_negative_slope_or_offset(
    points: list[tuple[float, float]], line: tuple[float, float]
) -> None:
    assert line_through(points) == pytest.approx(line)


def trained(store: Store) -> None:
    """Job 1: two GPUs of a node, moved once at 20 s, done with five epochs at 60 s."""
    store.jobs.register([registration(1, terms={"max_gpus": 4})], at=at(0))
    store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(2))], at=at(3))
    store.agent.report(token_of(1), report(1, first_step_s=3.0, epoch=0, progress=5.0), at=at(6))
    move_running_job(store)
    clearer = dataclasses.replace(MODEL, statistics=GradientStatistics(sqr=1.0, var=1.0))
    store.agent.report(
        token_of(1),
        report(9, run_number=1, restart_count=1, model=clearer, epoch=3, progress=9000.0, efficiency=0.9),
        at=at(50),
    )
    last = report(
        10, run_number=1, restart_count=1, phase=RunPhase.FINISHED, model=clearer, epoch=5, progress=9500.0
    )
    store.agent.report(token_of(1), last, at=at(59))
    store.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(60))], at=at(61))


def test_that_a_job_is_exported_with_its_measurements(store: Store) -> None:
    trained(store)
    (job,) = export_queue(store).queue.jobs
    assert (job.name, job.account, job.submitted_s) == ("1 train-1", "vision", 0.0)
    assert (job.start_gpus, job.min_gpus, job.max_gpus, job.num_epochs) == (2, 1, 4, 5)
    assert MODEL.throughput is not None
    assert job.limits == MODEL.limits
    assert job.throughput.alpha_g == pytest.approx(0.95 * MODEL.throughput.alpha_g), "190 predicted, 200 seen"
    assert job.statistics == (
        (0, MODEL.statistics),
        (1, MODEL.statistics),
        (3, GradientStatistics(sqr=1.0, var=1.0)),
    )
    assert job.examples_per_epoch > 9500 * 128 / 5, "of examples, some were not useful"


def test_that_delays_are_those_of_the_journal(store: Store) -> None:
    """Requested at 21, blocked for half a second, confirmed at 23, running at 29, first step at 35."""
    trained(store)
    found = export_queue(store).queue.delays
    assert found is not None
    assert (found.num_moves, found.num_starts) == (1, 1)
    assert (found.notice_s, found.checkpoint_s, found.requeue_s) == pytest.approx((1.5, 0.5, 6.0))
    assert found.start_s == 2.0
    assert (found.launch_s, found.launch_per_gpu_s) == pytest.approx((2.0, 1.0)), "4 s on 2 GPUs, 6 s on 4"


def test_that_moves_in_place_are_no_measurements_of_requeues(store: Store) -> None:
    store.jobs.register([registration(1)], at=at(0))
    store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(2))], at=at(3))
    store.agent.report(token_of(1), report(1, first_step_s=3.0), at=at(6))
    move_running_job(store)
    alone = measure_delays(store, store.jobs.all())
    move_in_place(store, start=300, restart_count=1)
    both = measure_delays(store, store.jobs.all())
    assert alone is not None
    assert both is not None
    (record,) = store.jobs.all()
    assert (both.num_regroups, both.warm_up_s, both.standstill_s) == (
        1,
        record.mean_warm_up_s,
        record.mean_standstill_s,
    )
    assert dataclasses.replace(both, num_regroups=0, warm_up_s=None, standstill_s=None) == alone
    assert (both.as_delays().warm_up_s, both.as_delays().standstill_s) == (both.warm_up_s, both.standstill_s)


def test_that_unmeasured_delays_have_their_defaults(store: Store) -> None:
    store.jobs.register([registration(1)], at=at(0))
    assert measure_delays(store, store.jobs.all()) is None
    store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(1))], at=at(3))
    store.agent.report(token_of(1), report(1, first_step_s=3.0), at=at(6))
    found = measure_delays(store, store.jobs.all())
    assert found is not None
    assert (found.start_s, found.launch_s, found.num_moves) == (1.0, 5.0, 0)
    assert found.requeue_s == Delays().requeue_s


def test_that_jobs_that_cannot_be_simulated_are_named(store: Store) -> None:
    store.jobs.register([registration(number) for number in (1, 2, 3)], at=at(0))
    store.agent.report(token_of(2), report(1, total_epochs=None), at=at(6))
    store.agent.report(token_of(3), report(1, epoch=0), at=at(6))
    found = export_queue(store)
    assert found.queue.jobs == ()
    assert dict(found.excluded) == {
        "1": "it has reported no model",
        "2": "it has not declared how many epochs it trains",
        "3": "it has not ended an epoch",
    }


def test_that_a_job_with_an_impossible_model_excludes_only_itself(store: Store) -> None:
    """A larger batch of no use whatever: the examples of an epoch are then beyond all bounds."""
    store.jobs.register([registration(number) for number in (1, 2)], at=at(0))
    store.agent.report(token_of(1), report(1), at=at(6))
    store.agent.report(token_of(2), report(1, efficiency=1e-9, progress=1e14), at=at(6))
    found = export_queue(store)
    assert [job.name for job in found.queue.jobs] == ["1 train-1"]
    ((job_id, reason),) = found.excluded
    assert job_id == "2"
    assert reason.startswith("it trains 5 epochs of")


def test_that_of_two_jobs_with_one_id_the_newest_is_exported(store: Store) -> None:
    store.jobs.register([registration(1)], at=at(0))
    store.agent.report(token_of(1), report(1), at=at(6))
    store.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(60))], at=at(61))
    store.jobs.register(
        [registration(1, terms={"token_sha256": hash_token("1001-another")}, name="new")], at=at(90)
    )
    store.agent.report("1001-another", report(1), at=at(100))
    found = export_queue(store)
    assert [job.name for job in found.queue.jobs] == ["1 new"]
    assert found.excluded == (("1", "a later job has its job id"),)


def test_that_a_window_takes_the_jobs_submitted_in_it(store: Store) -> None:
    store.jobs.register([registration(n, submitted_at=at(100.0 * n)) for n in (1, 2, 3)], at=at(400))
    for number in (1, 2, 3):
        store.agent.report(token_of(number), report(1), at=at(500))
    jobs = export_queue(store, since=at(200), until=at(300)).queue.jobs
    assert [(job.name, job.submitted_s) for job in jobs] == [("2 train-2", 0.0)]
