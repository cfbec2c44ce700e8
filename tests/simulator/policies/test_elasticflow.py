"""ElasticFlow: least shares by hand, who is admitted, and where spare GPUs go."""

from __future__ import annotations

import numpy as np
import pytest

from pollux_slurm.simulator import Cluster, SimulationResult
from pollux_slurm.simulator.engine.cluster import SchedulingPolicy
from pollux_slurm.simulator.policies import EdfPolicy, ElasticFlowPolicy
from pollux_slurm.simulator.policies.elasticflow import Demand, Plan, least_share
from tests.simulator.rated import hours, job_of, run_rated

KIND = "m (batch size 8)"
LINEAR = {1: 1.0, 2: 2.0, 4: 4.0}


def share(left: float, time_s: float, free: list[int]) -> Plan | None:
    """Return the least share with slots of a second, at rates 1, 1.5 and 2 on 1, 2 and 4 GPUs."""
    demand = Demand(left=left, rates=(1.0, 1.5, 2.0), time_s=time_s)
    return least_share(demand, np.array(free, dtype=np.int64), 1.0)


@pytest.mark.parametrize(
    ("left", "time_s", "free", "gpus", "gpu_s"),
    [
        (4.5, 10, [4] * 10, [0] * 5 + [1] * 5, 4.5),
        (10, 10, [4] * 10, [1] * 10, 10.0),
        (10, 6, [4] * 6, [0, 4, 4, 4, 4, 4], 20.0),
        (3.5, 3, [4, 1, 4], [2, 1, 2], 4.33333),
        (2.0, 2.5, [0, 4, 4], [0, 2, 2], 2.66667),
    ],
)
def test_that_the_least_power_of_two_that_finishes_fills_slots_backwards(
    left: float, time_s: float, free: list[int], gpus: list[int], gpu_s: float
) -> None:
    found = share(left, time_s, free)
    assert found is not None
    assert found.gpus.tolist() == gpus
    assert found.gpu_seconds == pytest.approx(gpu_s, abs=1e-4)


def test_that_what_no_share_finishes_has_no_plan() -> None:
    assert share(13.0, 6, [4] * 6) is None
    assert share(1.0, 1, [0]) is None


def run_hour_jobs(
    policy: SchedulingPolicy, num_jobs: int, by_s: float, rates: dict[int, float]
) -> SimulationResult:
    """Simulate jobs of an hour with one deadline on a node of two GPUs."""
    jobs = [hours(f"j{index}", 1.0, KIND, finish_by_s=by_s) for index in range(num_jobs)]
    cluster = Cluster(num_nodes=1, gpus_per_node=2, interval_s=360.0, restart_delay_s=0.0)
    return run_rated(policy, cluster, {KIND: {"t4": rates}}, *jobs)


def met(result: SimulationResult) -> list[bool]:
    return [(job.finished_s or 0.0) <= (job.job.finish_by_s or 0.0) for job in result.jobs]


def test_that_a_job_that_would_break_a_deadline_is_refused_and_ends_later() -> None:
    """Two GPUs have two hours of work until the deadline, an hour after the first round."""
    result = run_hour_jobs(ElasticFlowPolicy(), 3, 3960.0, LINEAR)
    assert [job.accepted_s for job in result.jobs] == [360.0, 360.0, None]
    assert met(result) == [True, True, False]


def test_that_a_job_that_would_take_the_slots_of_an_admitted_one_is_refused() -> None:
    """The second has the earlier deadline, and could meet it on the only GPU; the first then could not."""
    jobs = [
        hours("first", 1.0, KIND, finish_by_s=4500.0),
        hours("second", 1.0, KIND, finish_by_s=4400.0, submitted_s=720.0),
    ]
    cluster = Cluster(num_nodes=1, gpus_per_node=1, interval_s=360.0, restart_delay_s=0.0)
    result = run_rated(ElasticFlowPolicy(), cluster, {KIND: {"t4": {1: 1.0}}}, *jobs)
    assert [job.accepted_s for job in result.jobs] == [360.0, None]
    assert met(result) == [True, False]


def test_that_the_earliest_deadline_is_planned_first() -> None:
    """The urgent job needs both GPUs for two slots; the other can have both for the two after these.

    Planned first, the other's least share would be one GPU in each of the four slots.
    """
    jobs = [
        hours("later", 0.4, KIND, finish_by_s=360.0 + 4 * 360),
        hours("urgent", 0.4, KIND, finish_by_s=360.0 + 2 * 360),
    ]
    cluster = Cluster(num_nodes=1, gpus_per_node=2, interval_s=360.0, restart_delay_s=0.0)
    result = run_rated(ElasticFlowPolicy(), cluster, {KIND: {"t4": LINEAR}}, *jobs)
    assert met(result) == [True, True]


def test_that_earliest_first_gives_the_largest_power_of_two() -> None:
    rates = {1: 1.0, 2: 2.0, 3: 3.0}
    jobs = [job_of(hours(f"by{by_s:g}", 1.0, KIND, finish_by_s=by_s), rates) for by_s in (7200.0, 3600.0)]
    given = EdfPolicy().allocate(0.0, jobs, Cluster(num_nodes=1, gpus_per_node=3))
    assert {name: sum(gpus for _, gpus in one) for name, one in given.items()} == {"by3600": 2, "by7200": 1}


def test_that_least_shares_meet_deadlines_that_earliest_first_misses() -> None:
    """The second GPU adds a tenth: who takes both delays the other beyond its deadline."""
    rates = {1: 1.0, 2: 1.1}
    assert met(run_hour_jobs(ElasticFlowPolicy(), 2, 3960.0, rates)) == [True, True]
    assert met(run_hour_jobs(EdfPolicy(), 2, 3960.0, rates)) == [True, False]


def test_that_spare_gpus_go_where_they_cost_the_least_gpu_time() -> None:
    """A second GPU costs the linear job nothing more than its ten GPU hours, the other 0.82 more than one."""
    flat = job_of(hours("flat", 1.0, "flat (batch size 8)"), {1: 1.0, 2: 1.1})
    jobs = [flat, job_of(hours("linear", 10.0, KIND), LINEAR)]
    given = ElasticFlowPolicy().allocate(0.0, jobs, Cluster(num_nodes=1, gpus_per_node=3))
    assert {name: sum(gpus for _, gpus in one) for name, one in given.items()} == {"flat": 1, "linear": 2}


def test_that_a_lone_job_grows_while_that_makes_it_faster() -> None:
    job = job_of(hours("a", 1.0, KIND, finish_by_s=36000.0), {1: 1.0, 2: 1.5, 4: 1.4, 8: 3.0})
    given = ElasticFlowPolicy().allocate(0.0, [job], Cluster(num_nodes=1, gpus_per_node=8))
    assert given == {"a": ((0, 2),)}


def test_that_a_job_moves_aside_for_a_whole_node() -> None:
    """Powers of two are placed whatever runs where: four single GPUs, and a job of four on one node."""
    small = [job_of(hours(f"s{index}", 1.0, KIND), {1: 1.0}) for index in range(4)]
    for index, job in enumerate(small):
        job.allocation = ((index % 2, 1),)
    large = job_of(hours("large", 1.0, KIND), LINEAR)
    given = ElasticFlowPolicy().allocate(0.0, [*small, large], Cluster(num_nodes=2))
    assert len(given["large"]) == 1
    assert sorted(gpus for one in given.values() for _, gpus in one) == [1, 1, 1, 1, 4]
