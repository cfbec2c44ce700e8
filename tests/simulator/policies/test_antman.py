"""AntMan: guaranteed jobs keep their GPUs, and lose no more than 1 %."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollux_slurm.simulator import Cluster, NodeGroup, SimulationResult, WorkloadJob
from pollux_slurm.simulator.engine.sharing import PairRates
from pollux_slurm.simulator.policies import AntManPolicy
from tests.simulator.rated import hours, one_gpu_cluster, run_rated

STEPS = {"a": {"t4": {1: 1.0, 2: 2.0}}, "b": {"t4": {1: 3.0, 2: 5.0}}}


def rates_of(beside: float, own: float) -> PairRates:
    pairs = [("a", "b"), ("a", "a"), ("b", "b")]
    return PairRates({("t4", one, two, size): (beside, own) for one, two in pairs for size in (1, 2)})


class Named(AntManPolicy):
    """Jobs whose names begin with g are guaranteed."""

    def is_guaranteed(self, name: str) -> bool:
        return name.startswith("g")


def test_that_an_opportunistic_job_is_slowed_until_the_guaranteed_loses_one_percent() -> None:
    """At half the rate beside each other, it runs in 2 % of the time: at 0.02·0.5 of its rate."""
    cluster = one_gpu_cluster("t4", interval_s=1)
    jobs = (hours("g", 1, "a"), hours("o", 1, "a"))
    done = run_rated(Named(rates_of(0.5, 0.5)), cluster, STEPS, *jobs)
    first_s, other_s = (job.finished_s or 0.0 for job in done.jobs)
    assert first_s - 1 == pytest.approx(3600 / 0.99, abs=0.5), "whole seconds"
    assert other_s - first_s == pytest.approx(3600 - 0.01 * (first_s - 1), abs=2)


def test_that_a_pair_that_costs_nothing_runs_all_the_time() -> None:
    done = run_rated(
        Named(rates_of(1.0, 0.7)), one_gpu_cluster("t4"), STEPS, hours("g", 1, "a"), hours("o", 0.5, "a")
    )
    assert [job.finished_s for job in done.jobs] == [
        pytest.approx(360 + 3600),
        pytest.approx(360 + 1800 / 0.7),
    ]


def test_that_an_opportunistic_job_goes_where_it_is_fastest() -> None:
    """Both hosts lose nothing; beside an `a` it has 0.3 of its rate, beside a `b` 0.9."""
    rates = PairRates({("t4", "a", "a", 1): (1.0, 0.3), ("t4", "b", "a", 1): (1.0, 0.9)})
    cluster = Cluster(groups=(NodeGroup(num_nodes=1, gpus_per_node=2),), interval_s=360, restart_delay_s=0)
    jobs = (hours("g1", 2, "a"), hours("g2", 2, "b"), hours("o", 0.5, "a"))
    done = run_rated(Named(rates), cluster, STEPS, *jobs)
    assert done.jobs[2].finished_s == pytest.approx(360 + 1800 / 0.9)


def test_that_only_jobs_of_equal_size_share() -> None:
    cluster = Cluster(groups=(NodeGroup(num_nodes=1, gpus_per_node=2),), interval_s=360, restart_delay_s=0)
    jobs = (hours("g", 1, "a", num_replicas=2), hours("o", 0.1, "a"))
    done = run_rated(Named(rates_of(1.0, 1.0)), cluster, STEPS, *jobs)
    assert (done.jobs[1].first_started_s or 0.0) >= (done.jobs[0].finished_s or 0.0)


def test_that_a_guaranteed_job_gets_the_gpus_of_an_opportunistic_one() -> None:
    jobs = (hours("o", 2, "a"), hours("g", 1, "b", submitted_s=400.0))
    done = run_rated(Named(PairRates({})), one_gpu_cluster("t4"), STEPS, *jobs)
    ends = {job.job.name: job.finished_s for job in done.jobs}
    assert ends["g"] == pytest.approx(720 + 3600)
    assert ends["o"] == pytest.approx(720 + 3600 + 7200 - 360)


def test_that_guaranteed_jobs_start_first_come_first_served() -> None:
    cluster = Cluster(groups=(NodeGroup(num_nodes=1, gpus_per_node=2),), interval_s=360, restart_delay_s=0)
    jobs = (hours("g1", 1, "a"), hours("g2", 1, "a", num_replicas=2), hours("g3", 1, "a"))
    done = run_rated(Named(PairRates({})), cluster, STEPS, *jobs)
    begins = [job.first_started_s or 0.0 for job in done.jobs]
    assert begins[0] == 360
    assert 360 + 3600 <= begins[1] < begins[2], "a GPU is free at first, but nobody overtakes"


def test_that_the_share_of_guaranteed_jobs_is_drawn_by_their_names() -> None:
    policy = AntManPolicy(PairRates({}), guaranteed=0.3)
    chosen = [policy.is_guaranteed(f"job-{number}") for number in range(2000)]
    assert sum(chosen) / 2000 == pytest.approx(0.3, abs=0.03)
    assert chosen == [policy.is_guaranteed(f"job-{number}") for number in range(2000)]


def trained_s(done: SimulationResult) -> dict[str, float]:
    return {
        job.job.name: (job.finished_s or 0.0) - (job.first_started_s or 0.0)
        for job in done.jobs
        if job.job.name.startswith("g")
    }


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), beside=st.floats(0.05, 1.1), own=st.floats(0.05, 1.1))
def test_that_no_guaranteed_job_is_delayed_by_more_than_one_percent(
    seed: int, beside: float, own: float
) -> None:
    """Against the same guaranteed jobs alone; each is never moved, whatever the others do."""
    rng = random.Random(seed)
    jobs = [
        hours(
            f"{rng.choice('go')}{number}",
            rng.uniform(0.2, 2),
            rng.choice("ab"),
            num_replicas=rng.choice((1, 2)),
            submitted_s=rng.uniform(0, 7200),
        )
        for number in range(10)
    ]
    cluster = Cluster(groups=(NodeGroup(num_nodes=2, gpus_per_node=2),), interval_s=60, restart_delay_s=0)
    alone: list[WorkloadJob] = [job for job in jobs if job.name.startswith("g")]
    if not alone:
        return
    rates = rates_of(beside, own)
    shared = run_rated(Named(rates), cluster, STEPS, *jobs)
    expected = trained_s(run_rated(Named(rates), cluster, STEPS, *alone))
    for name, took_s in trained_s(shared).items():
        assert took_s <= expected[name] * 1.0102 + 1e-6
    assert {job.num_restarts for job in shared.jobs if job.job.name.startswith("g")} == {0}
