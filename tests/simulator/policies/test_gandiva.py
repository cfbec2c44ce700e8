"""Gandiva on problems whose answer follows from its rules."""

from __future__ import annotations

import pytest

from pollux_slurm.simulator import Cluster, NodeGroup
from pollux_slurm.simulator.engine.sharing import PairRates
from pollux_slurm.simulator.policies import GandivaPolicy
from tests.simulator.rated import hours, one_gpu_cluster, run_rated

STEPS = {"a": {"t4": {1: 1.0, 2: 2.0, 4: 4.0}}}


def policy_of(rate: float | None, size: int = 1) -> GandivaPolicy:
    """Return the policy for jobs that have this part of their rate beside one another."""
    return GandivaPolicy(PairRates({} if rate is None else {("t4", "a", "a", size): (rate, rate)}))


def test_that_jobs_that_fit_share_nothing() -> None:
    cluster = Cluster(groups=(NodeGroup(num_nodes=1, gpus_per_node=2),), interval_s=360, restart_delay_s=0)
    done = run_rated(policy_of(0.9), cluster, STEPS, hours("x", 1, "a"), hours("y", 1, "a"))
    assert [job.finished_s for job in done.jobs] == [pytest.approx(360 + 3600)] * 2


def test_that_a_pair_that_pays_is_kept() -> None:
    """Two jobs on a GPU at 0.8 of their rates both end after 3600/0.8 s, and are never moved."""
    done = run_rated(policy_of(0.8), one_gpu_cluster("t4"), STEPS, hours("x", 1, "a"), hours("y", 1, "a"))
    assert [job.finished_s for job in done.jobs] == [pytest.approx(360 + 4500)] * 2
    assert [job.num_restarts for job in done.jobs] == [0, 0]


def test_that_a_pair_that_does_not_pay_takes_turns_after_its_first_round() -> None:
    """At 0.25 each, the pair trains 90 s each in its round; then each has every second round alone."""
    done = run_rated(policy_of(0.25), one_gpu_cluster("t4"), STEPS, hours("x", 1, "a"), hours("y", 1, "a"))
    first, last = sorted(job.finished_s or 0.0 for job in done.jobs)
    assert first == pytest.approx(720 + 2 * 3600 - 90 - 360, abs=360)
    assert last == pytest.approx(360 + 360 + 2 * (3600 - 90), abs=360)
    shared = [len(record.allocations) for record in done.rounds]
    assert shared[:3] == [2, 1, 1]
    assert [next(iter(record.allocations)) for record in done.rounds[1:5]] in (
        ["x", "y", "x", "y"],
        ["y", "x", "y", "x"],
    )


def test_that_jobs_without_memory_for_two_take_turns_from_the_start() -> None:
    done = run_rated(policy_of(None), one_gpu_cluster("t4"), STEPS, hours("x", 1, "a"), hours("y", 1, "a"))
    assert {len(record.allocations) for record in done.rounds} == {1}


def test_that_only_jobs_of_equal_size_share() -> None:
    cluster = Cluster(groups=(NodeGroup(num_nodes=1, gpus_per_node=2),), interval_s=360, restart_delay_s=0)
    jobs = (hours("x", 1, "a"), hours("y", 1, "a", num_replicas=2))
    done = run_rated(policy_of(0.9), cluster, STEPS, *jobs)
    assert {len(record.allocations) for record in done.rounds} == {1}


def test_that_a_job_is_migrated_where_free_gpus_are_fragments() -> None:
    """Two jobs of one GPU on two nodes; the third job's four GPUs are free, but on no node."""
    cluster = Cluster(groups=(NodeGroup(num_nodes=2, gpus_per_node=4),), interval_s=360, restart_delay_s=0)
    jobs = [hours("x", 3, "a"), hours("y", 3, "a"), hours("z", 1, "a", num_replicas=4, submitted_s=400.0)]
    done = run_rated(policy_of(None), cluster, STEPS, *jobs)
    before, after = done.rounds[0].allocations, done.rounds[1].allocations
    assert {node for allocation in before.values() for node, _ in allocation} == {0, 1}
    assert len(after["z"]) == 1
    assert sum(job.num_restarts or 0 for job in done.jobs) == 1


def test_that_the_fastest_type_has_no_idle_gpu_and_jobs_take_turns_on_it() -> None:
    """Three jobs on two fast and two slow GPUs: each has a fast one in two rounds of three."""
    cluster = Cluster(
        groups=(
            NodeGroup(num_nodes=1, gpus_per_node=2, gpu_type="t4"),
            NodeGroup(num_nodes=1, gpus_per_node=2, gpu_type="a100"),
        ),
        interval_s=360,
        restart_delay_s=0,
    )
    steps = {"a": {"t4": {1: 1.0}, "a100": {1: 2.0}}}
    done = run_rated(policy_of(None), cluster, steps, *(hours(name, 3, "a") for name in "xyz"))
    fast = [{name for name, held in record.allocations.items() if held[0][0] == 1} for record in done.rounds]
    assert [len(names) for names in fast[:6]] == [2] * 6
    assert [sum(name in names for names in fast[:6]) for name in "xyz"] == [4, 4, 4]


def test_that_all_jobs_are_paired_where_requests_exceed_the_gpus_by_one() -> None:
    """Four jobs on three GPUs are two pairs; once one has ended, the others have a GPU each."""
    cluster = Cluster(groups=(NodeGroup(num_nodes=1, gpus_per_node=3),), interval_s=360, restart_delay_s=0)
    jobs = [hours(name, length, "a") for name, length in zip("wxyz", (0.5, 2, 2, 2), strict=True)]
    done = run_rated(policy_of(0.8), cluster, STEPS, *jobs)
    assert [len(record.allocations) for record in done.rounds[:8]] == [4] * 7 + [3]
    ends = sorted(job.finished_s or 0.0 for job in done.jobs)
    # 0.5 h at 0.8 end after 2250 s, in the seventh round; the others then train at their full rate.
    assert ends[0] == pytest.approx(360 + 2250)
    assert ends[1:] == [pytest.approx(360 + 7 * 360 + 7200 - 0.8 * 7 * 360)] * 3


def test_that_a_turn_counts_by_the_time_since_the_job_came() -> None:
    """After 19 rounds alone, the first does not wait for 19 of the second's: 5 of 6 outdo its 21 of 27."""
    late = hours("y", 2, "a", submitted_s=7200.0)
    done = run_rated(policy_of(None), one_gpu_cluster("t4"), STEPS, hours("x", 5, "a"), late)
    turns = [next(iter(record.allocations)) for record in done.rounds if record.at_s >= 7200]
    assert 1 <= turns[:10].count("x") <= 4
