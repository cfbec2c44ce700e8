"""Measurements that are off: seeded, and of no concern to what training makes."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from pollux_slurm.errors import SimulationError
from pollux_slurm.goodput import Observation
from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator import Cluster, simulate
from pollux_slurm.simulator.engine.job import SimulatedJob
from pollux_slurm.simulator.engine.measurements import (
    NO_NOISE,
    OUTLIER,
    JobMeasurements,
    MeasurementNoise,
    NoisyMeasurements,
)
from pollux_slurm.simulator.experiments.settings import RunSettings
from tests.simulator.builders import made_application, made_job

TRUTH = Observation(num_nodes=1, num_gpus=2, atomic_batch_size=8, micro_batch_s=0.25, last_time_s=0.5)
WHOLE = BatchChoice(global_batch_size=8, atomic_batch_size=8, accumulation_steps=0)


def measured(seed: int = 0, job: str = "a", **noise: float) -> list[Observation]:
    noisy = NoisyMeasurements(MeasurementNoise(**noise), seed=seed, job=job)
    return [noisy.measure(TRUTH, "t4") for _ in range(500)]


def test_that_measurements_depend_on_seed_and_job_only() -> None:
    assert measured(spread=0.2) == measured(spread=0.2)
    assert measured(spread=0.2) != measured(spread=0.2, seed=1)
    assert measured(spread=0.2) != measured(spread=0.2, job="b")


def test_that_medians_of_16_minutes_are_a_third_as_far_off_as_a_minute() -> None:
    logs = [math.log(seen.micro_batch_s / TRUTH.micro_batch_s) for seen in measured(spread=0.2)]
    # The standard error of a median of n is sqrt(pi/(2·n)) times the deviation.
    assert statistics.stdev(logs[16:]) == pytest.approx(0.2 * math.sqrt(math.pi / 32), rel=0.2)
    assert all(seen.last_time_s >= seen.micro_batch_s for seen in measured(spread=0.2))


def test_that_outliers_are_ten_times_too_long_and_removed_by_the_medians() -> None:
    first = [
        NoisyMeasurements(MeasurementNoise(outliers=0.25), seed=seed, job="a").measure(TRUTH, "t4")
        for seed in range(400)
    ]
    slow = [seen for seen in first if seen.micro_batch_s == OUTLIER * TRUTH.micro_batch_s]
    assert 70 <= len(slow) <= 130
    assert measured(outliers=0.05)[4:].count(TRUTH) >= 490


def test_that_a_situation_is_confirmed_from_its_second_minute_on() -> None:
    noisy = NoisyMeasurements(MeasurementNoise(spread=0.1), seed=0, job="a")
    elsewhere = replace(TRUTH, num_nodes=2)
    found = [noisy.measure(truth, "t4").confirmed for truth in (TRUTH, elsewhere, TRUTH, elsewhere, TRUTH)]
    assert found == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("spans", "later", "restart_s", "expired"),
    [
        (1, 10, 30.0, False),
        (1, 11, 30.0, True),
        (2, 20, 30.0, False),
        (2, 21, 30.0, True),
        (4, 41, 30.0, True),
        (15, 151, 30.0, True),
        (16, 400, 30.0, False),
        (1, 40, 250.0, False),
        (1, 42, 250.0, True),
    ],
)
def test_that_a_median_expires_the_later_the_more_minutes_it_spans(
    spans: int, later: int, restart_s: float, expired: bool
) -> None:
    noisy = NoisyMeasurements(MeasurementNoise(spread=0.1), seed=0, job="a")
    seen = [noisy.measure(TRUTH, "t4") for _ in range(spans)][-1]
    for _ in range(later):
        other = noisy.measure(replace(TRUTH, num_nodes=2), "t4")
    assert [one.expired for one in noisy.aged([seen, other], "t4", restart_s)] == [expired, False]


@pytest.mark.parametrize(("spread", "expected"), [(0.0, 0.0), (0.1, 0.05), (0.3, 0.15)])
def test_that_the_error_is_that_of_a_minute_against_the_medians(spread: float, expected: float) -> None:
    noisy = NoisyMeasurements(MeasurementNoise(spread=spread), seed=0, job="a")
    assert noisy.error == 0.0
    errors = []
    for _ in range(500):
        noisy.measure(TRUTH, "t4")
        errors.append(noisy.error)
    assert statistics.fmean(errors) == pytest.approx(expected, rel=0.25, abs=1e-12)


def test_that_a_job_trains_as_fast_as_without_noise_and_measures_anew_in_each_round(tmp_path: Path) -> None:
    made, seen = [], []
    for noise in (NO_NOISE, MeasurementNoise(spread=0.3)):
        job = SimulatedJob(
            job=made_job("one"),
            application=made_application(tmp_path / str(noise.spread)),
            choose_batch=lambda job: WHOLE,
            measured=JobMeasurements(NoisyMeasurements(noise, seed=0, job="one") if noise else None),
        )
        job.reallocate(((0, 2),), now_s=0.0)
        for round_ in range(4):
            job.advance(10.0 * round_, 10.0)
            seen.append(job.measured.by_type["t4"][1, 2, 8])
        made.append((job.progress, job.measured.num_measured))
    assert made == [(80.0, 1), (80.0, 4)]
    assert (len(set(seen[:4])), len(set(seen[4:])) > 1) == (1, True)


def test_that_a_noisy_simulation_is_reproducible_and_depends_on_the_seed(tmp_path: Path) -> None:
    applications = {"made": made_application(tmp_path)}
    jobs = [made_job(str(index), at_s=15.0 * index) for index in range(6)]

    def completions(seed: int) -> list[float | None]:
        settings = RunSettings(num_nodes=2, noise=MeasurementNoise(spread=0.5), seed=seed)
        cluster = Cluster(num_nodes=2, restart_delay_s=5.0)
        result = simulate(jobs, applications, settings.make_policy(), cluster, rules=settings.make_rules())
        return [job.finished_s for job in result.jobs]

    assert completions(3) == completions(3)
    assert len({tuple(completions(seed)) for seed in range(6)}) > 1


@pytest.mark.parametrize("noise", [{"spread": -0.1}, {"spread": math.nan}, {"outliers": 1.1}])
def test_that_impossible_noise_is_refused(noise: dict[str, float]) -> None:
    with pytest.raises(SimulationError, match="must lie between"):
        MeasurementNoise(**noise)
