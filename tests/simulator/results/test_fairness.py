"""What sharing a cluster costs a job, against the same job alone on an equal share."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pollux_slurm.simulator import Cluster, NodeGroup, simulate, slurm_rules
from pollux_slurm.simulator.policies import make_policy
from pollux_slurm.simulator.results.fairness import AloneTimes, alone_times, mean_rate_alone, share_above_one
from tests.simulator.builders import made_application, made_job


def test_that_a_job_alone_takes_the_best_measured_batch(tmp_path: Path) -> None:
    """At 8: 150.25 steps of 1 s alone. At 32 and 0.5 s the gain is 1.75/(0.75/4 + 1): 101.96 steps."""
    made, times = made_application(tmp_path), AloneTimes(4)
    gain = 1.75 / (0.75 / 4 + 1)
    two_gpus_s = round(100 * 0.5 / gain) + round(50.25 * 0.5 / gain)
    assert times.training_s(made, 2) == two_gpus_s == 51
    assert times.training_s(made, 1) == 150, "at 32 one GPU needs two passes: 2 s a step"
    assert times.training_s(made, 0.5) == 300


def test_that_rates_are_linear_between_whole_gpus(tmp_path: Path) -> None:
    made, times = made_application(tmp_path), AloneTimes(4)
    assert times.training_s(made, 1.25) == pytest.approx(1 / (0.75 / 150 + 0.25 / 51))
    assert times.training_s(made, 3) == times.training_s(made, 2), "no faster on three"
    assert times.training_s(made, 1000) == 51, "fewer GPUs are taken where more are slower"
    assert times.training_s(made, 0) is None


def test_that_the_mean_rate_counts_examples_at_the_initial_batch_size(tmp_path: Path) -> None:
    assert mean_rate_alone(AloneTimes(4), made_application(tmp_path)) == pytest.approx(150.25 * 8 / 150)


def test_that_the_alone_time_uses_the_mean_share_over_the_jobs_rounds(tmp_path: Path) -> None:
    """Both are there at 60, 120 and 180 s; the second sees another such round, then three alone."""
    made = {"made": made_application(tmp_path)}
    policy = make_policy("tiresias", objective="generalized-mean", declared=False)
    cluster = Cluster(num_nodes=1, gpus_per_node=1)
    result = simulate([made_job("a", at_s=5), made_job("b", at_s=10)], made, policy, cluster)
    first, second = alone_times(result, AloneTimes(1))
    assert first == 55 + 30 + 150 / (1 / 2)
    assert second == pytest.approx(50 + 30 + 150 / (7 / 11))


def test_that_the_start_alone_is_that_of_the_rules(tmp_path: Path) -> None:
    made = {"made": made_application(tmp_path)}
    policy = make_policy("tiresias", objective="generalized-mean", declared=False)
    rules = slurm_rules()
    result = simulate([made_job("a")], made, policy, Cluster(num_nodes=1), rules=rules)
    assert rules.delays is not None
    start_s = (
        rules.delays.backfill_s
        + rules.delays.start_s
        + rules.delays.time_to_first_step_s("made", restore=False)
    )
    assert alone_times(result, AloneTimes(4)) == [pytest.approx(60 + start_s + 51)]


def test_that_faster_gpus_are_a_larger_share(tmp_path: Path) -> None:
    made = {"made": made_application(tmp_path)}
    policy = make_policy("tiresias", objective="generalized-mean", declared=False)
    slow = Cluster(groups=(NodeGroup(num_nodes=1, gpus_per_node=1, gpu_type="old", speed=0.5),))
    result = simulate([made_job("a")], made, policy, slow)
    assert alone_times(result, AloneTimes(1)) == [pytest.approx(60 + 30 + 300)]
    without = dataclasses.replace(result, rounds=result.rounds[:0])
    assert alone_times(without, AloneTimes(1)) == [pytest.approx(30 + 300)], "it waits for no round"


def test_that_only_ratios_above_one_count() -> None:
    assert share_above_one([0.5, 1.0, 1.01, 3.0]) == 0.5
    assert share_above_one([]) is None


def test_that_a_job_with_twice_the_work_takes_twice_as_long_alone(tmp_path: Path) -> None:
    made = {"made": made_application(tmp_path)}
    policy = make_policy("tiresias", objective="generalized-mean", declared=False)
    job = dataclasses.replace(made_job("a", at_s=60), work=2.0)
    result = simulate([job], made, policy, Cluster(num_nodes=1, gpus_per_node=1, restart_delay_s=0))
    assert alone_times(result, AloneTimes(1)) == [2 * 150]
