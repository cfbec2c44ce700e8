"""Gavel: its programs on problems solved by hand, and its rounds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from pollux_slurm.simulator import NodeGroup
from pollux_slurm.simulator.policies import GavelPolicy
from pollux_slurm.simulator.policies.gavel_programs import (
    equal_shares,
    least_rho,
    max_min,
    max_sum,
    normalised,
)
from pollux_slurm.simulator.policies.packing import FreeGpus
from tests.simulator.rated import Cluster, hours, one_gpu_cluster, run_rated

ONE = np.array([1.0])


def test_that_least_attained_service_splits_types_by_normalised_rates() -> None:
    """R = T/prop is (1.6, 0.4) and (4/3, 2/3): with half of the time on each type, both have z = 1."""
    rates, sizes, counts = np.array([[4.0, 1.0], [2.0, 1.0]]), np.ones(2), np.ones(2)
    shares, least = max_min(normalised(rates, sizes, counts), rates, sizes, counts)
    assert shares == pytest.approx(np.full((2, 2), 0.5), abs=1e-3)
    assert least == pytest.approx(1.0, abs=1e-3)


def test_that_what_the_least_leaves_free_goes_where_it_is_fastest() -> None:
    """The second job is as fast on both types: z = 1 for any split; the first should have the fast one."""
    rates, sizes, counts = np.array([[4.0, 1.0], [1.0, 1.0]]), np.ones(2), np.ones(2)
    shares, _ = max_min(normalised(rates, sizes, counts), rates, sizes, counts)
    assert shares == pytest.approx(np.eye(2), abs=1e-3)


def test_that_a_job_of_two_gpus_has_half_the_time_of_a_job_of_one() -> None:
    rates, sizes, counts = np.ones((2, 1)), np.array([2.0, 1.0]), np.array([2.0])
    shares, _ = max_min(normalised(rates, sizes, counts), rates, sizes, counts)
    assert shares.ravel() == pytest.approx([0.5, 1.0], abs=1e-3)


def test_that_makespan_shares_a_gpu_by_what_is_left() -> None:
    rates, left = np.ones((2, 1)), np.array([[3.0], [1.0]])
    shares, _ = max_min(rates / left, rates, np.ones(2), ONE)
    assert shares.ravel() == pytest.approx([0.75, 0.25], abs=1e-3)


def test_that_the_sum_gives_all_to_the_fastest() -> None:
    assert max_sum(np.array([[3.0], [1.0]]), np.ones(2), ONE).ravel().tolist() == [1.0, 0.0]


def test_that_finish_time_fairness_makes_up_for_lost_time() -> None:
    """(100 + 100/x)/200 = (100/(1 − x))/200, so x is the golden section 0.618."""
    shares = least_rho(
        np.ones((2, 1)),
        np.ones(2),
        ONE,
        left=np.full(2, 100.0),
        age_s=np.array([100.0, 0.0]),
        ideal_s=np.full(2, 200.0),
    )
    assert shares[0, 0] == pytest.approx((5**0.5 - 1) / 2, abs=2e-3)


def test_that_an_equal_share_is_at_most_all_the_time() -> None:
    assert equal_shares(np.array([1.0, 4.0]), np.array([4.0])).ravel().tolist() == [1.0, 0.5]


def test_that_jobs_that_are_alike_get_alike() -> None:
    """Three jobs of one kind on two GPUs have two thirds of the time each, not two of them all of it."""
    shares = max_sum(np.ones((3, 1)), np.ones(3), np.array([2.0]))
    assert shares.ravel() == pytest.approx([2 / 3] * 3)


def test_that_a_type_where_a_job_cannot_run_is_not_given() -> None:
    rates = np.array([[1.0, 0.0], [1.0, 1.0]])
    shares, _ = max_min(normalised(rates, np.ones(2), np.ones(2)), rates, np.ones(2), np.ones(2))
    assert shares[0, 1] == 0


def test_that_rounds_give_each_job_its_part_of_the_time() -> None:
    """Three hours and one on a single GPU: each gets its part of every four rounds, and both end together."""
    rates = {name: {"v100": 1.0} for name in ("long", "short")}
    result = run_rated(
        GavelPolicy("makespan"), one_gpu_cluster("v100"), rates, hours("long", 3), hours("short", 1)
    )
    assert [job.finished_s for job in result.jobs] == pytest.approx([4 * 3600 + 360] * 2, abs=4 * 360)
    turns = [next(iter(record.allocations)) for record in result.rounds[:20]]
    assert Counter(turns)["long"] == 15


def test_that_an_aware_policy_knows_which_job_needs_the_fast_type() -> None:
    """Both take ten hours on a V100; only `big` is slower on a K80. Without that knowledge they alternate."""
    rates = {"big": {"v100": 4.0, "k80": 1.0}, "small": {"v100": 1.0, "k80": 1.0}}
    jobs = (hours("big", 10), hours("small", 10))
    aware = run_rated(GavelPolicy("las"), one_gpu_cluster("v100", "k80"), rates, *jobs)
    assert [job.finished_s for job in aware.jobs] == pytest.approx([36360, 36360])
    agnostic = run_rated(GavelPolicy("las", aware=False), one_gpu_cluster("v100", "k80"), rates, *jobs)
    assert agnostic.jobs[0].finished_s > 1.3 * 36360


def test_that_an_agnostic_policy_fills_types_in_any_order() -> None:
    """Its other job needs two GPUs, which the first type does not have."""
    cluster = Cluster(
        groups=(
            NodeGroup(num_nodes=1, gpus_per_node=1, gpu_type="v100"),
            NodeGroup(num_nodes=1, gpus_per_node=4, gpu_type="k80"),
        ),
        interval_s=360.0,
        restart_delay_s=0.0,
    )
    rates = {name: {kind: {1: 1.0, 2: 2.0} for kind in ("v100", "k80")} for name in ("one", "two")}
    jobs = (hours("one", 10), hours("two", 1, num_replicas=2))
    result = run_rated(GavelPolicy("las", aware=False), cluster, rates, *jobs)
    assert {record.allocations["one"] for record in result.rounds} == {((0, 1),), ((1, 1),)}
    assert {record.allocations.get("two") for record in result.rounds[:5]} == {((1, 2),)}


def test_that_an_agnostic_policy_takes_all_types_for_the_fastest() -> None:
    """On two GPUs, the sum serves the two of three jobs that are fastest on their own fastest type."""
    rates = {"a": {"v100": 2.0, "k80": 2.0}, "b": {"v100": 1.0, "k80": 4.0}, "c": {"v100": 3.0, "k80": 3.0}}
    jobs = (hours("a", 5), hours("b", 1), hours("c", 5))
    result = run_rated(GavelPolicy("sum", aware=False), one_gpu_cluster("v100", "k80"), rates, *jobs)
    assert all("b" in record.allocations for record in result.rounds if record.at_s < 3600 / 4)
    assert "a" not in result.rounds[0].allocations


def test_that_the_largest_jobs_are_placed_first() -> None:
    """Placed first, two jobs of one GPU would take one on each node, and split the job of two."""
    cluster = Cluster(num_nodes=2, gpus_per_node=2, interval_s=360.0, restart_delay_s=0.0)
    rates = {"one": {"t4": {1: 1.0}}, "other": {"t4": {1: 1.0}}, "two": {"t4": {1: 1.0, 2: 1.0}}}
    jobs = (hours("one", 1), hours("other", 1), hours("two", 1, num_replicas=2))
    result = run_rated(GavelPolicy("las"), cluster, rates, *jobs)
    assert len(result.rounds[0].allocations["two"]) == 1


def test_that_turns_count_anew_when_a_job_comes() -> None:
    """The first has had two hours; it does not wait until the second, of an hour, has had as much."""
    rates = {name: {"v100": 1.0} for name in ("early", "late")}
    late = hours("late", 1, submitted_s=7200.0)
    result = run_rated(GavelPolicy("las"), one_gpu_cluster("v100"), rates, hours("early", 4), late)
    assert result.jobs[1].finished_s == pytest.approx(4 * 3600, abs=3 * 360)


def test_that_a_fair_finish_counts_the_time_on_past_shares() -> None:
    """Alone, the first does half of two hours in one. Then both have half a share, and end after three hours.

    ρ is (1 + 1/x)/(1 + 2) = 1/(2·(1 − x)) at x = 1/2.
    """
    rates = {name: {"v100": 1.0} for name in ("early", "late")}
    late = hours("late", 1, submitted_s=3600.0)
    result = run_rated(GavelPolicy("ftf"), one_gpu_cluster("v100"), rates, hours("early", 2), late)
    assert [job.finished_s for job in result.jobs] == pytest.approx([3 * 3600 + 360] * 2, abs=2 * 360)


def test_that_the_sum_starves_the_slower_job() -> None:
    rates = {"fast": {"v100": 3.0}, "slow": {"v100": 1.0}}
    result = run_rated(GavelPolicy("sum"), one_gpu_cluster("v100"), rates, hours("slow", 1), hours("fast", 1))
    assert [job.job.name for job in result.jobs if job.finished_s == pytest.approx(3960)] == ["fast"]


def test_that_a_job_keeps_its_gpus_only_while_they_are_free() -> None:
    free = FreeGpus(Cluster(num_nodes=2), ())
    assert free.keep(((0, 3),))
    assert not free.keep(((0, 2), (1, 1)))
    assert free.take(5) == ((1, 4), (0, 1))
