"""Sia's configurations, its program on numbers of its paper, and the placement of the answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pollux_slurm.errors import SimulationError
from pollux_slurm.simulator import Cluster, NodeGroup
from pollux_slurm.simulator.policies import SiaPolicy
from pollux_slurm.simulator.policies.adaptive.sia import (
    SiaConfiguration,
    choose,
    configurations,
    place,
    restart_factor,
)
from tests.simulator.builders import made_job
from tests.simulator.scripted import run

# The example of its section 3.3: a node with 2 GPUs of type A, one with 4 of type B.
EXAMPLE = Cluster(
    groups=(
        NodeGroup(num_nodes=1, gpus_per_node=2, gpu_type="A"),
        NodeGroup(num_nodes=1, gpus_per_node=4, gpu_type="B"),
    )
)
TABLE_1 = np.array([[1, 1.5, 1.5, 2.5, 3.5], [1.2, 2.1, 1, 1.9, 3.6]])


def shape(num_gpus: int, num_nodes: int = 1, gpu_type: str = "t4") -> SiaConfiguration:
    return SiaConfiguration(gpu_type=gpu_type, num_nodes=num_nodes, num_gpus=num_gpus)


def test_that_the_papers_example_has_its_configurations() -> None:
    assert [(one.num_nodes, one.num_gpus, one.gpu_type) for one in configurations(EXAMPLE)] == [
        (1, 1, "A"),
        (1, 2, "A"),
        (1, 1, "B"),
        (1, 2, "B"),
        (1, 4, "B"),
    ]


def test_that_the_papers_example_has_its_solution() -> None:
    """J1 gets all of B, J2 all of A: here also with p = −0.5."""
    assert choose(TABLE_1, configurations(EXAMPLE), EXAMPLE, pinned={}) == {0: 4, 1: 1}


def test_that_whole_nodes_are_whole() -> None:
    """Of two nodes of 4, one lacks a GPU: nothing spans both, and no more than 4 + 2 + 1 are given."""
    cluster = Cluster(num_nodes=2).with_available([4, 3])
    offered = configurations(cluster)
    assert [(one.num_nodes, one.num_gpus) for one in offered] == [(1, 1), (1, 2), (1, 4)]
    chosen = choose(np.array([[1, 2, 4], [1, 2, 4.0]]), offered, cluster, pinned={})
    assert sorted(chosen.values()) == [1, 2]


def test_that_nodes_of_six_have_halves_powers_and_all() -> None:
    cluster = Cluster(num_nodes=2, gpus_per_node=6)
    assert [(one.num_nodes, one.num_gpus) for one in configurations(cluster)] == [
        (1, 1),
        (1, 2),
        (1, 4),
        (1, 6),
        (2, 12),
    ]


def test_that_a_pinned_job_keeps_its_configuration() -> None:
    chosen = choose(TABLE_1, configurations(EXAMPLE), EXAMPLE, pinned={1: 4})
    assert chosen == {0: 1, 1: 4}


def test_that_more_jobs_than_gpus_leave_some_out() -> None:
    cluster = Cluster(num_nodes=1, gpus_per_node=2)
    chosen = choose(np.ones((3, 1)), configurations(cluster)[:1], cluster, pinned={})
    assert len(chosen) == 2


def test_that_one_job_served_well_may_be_worth_more_than_two_served_badly() -> None:
    """p = −0.5, λ = 1.1: 100^p − λ = −1 for the first on both GPUs, 2·(1^p − λ) = −0.2 for one each."""
    cluster = Cluster(num_nodes=1, gpus_per_node=2)
    values = np.array([[1.0, 100.0], [1.0, 1.0]])
    assert choose(values, configurations(cluster), cluster, pinned={}) == {0: 1}


def test_that_goodput_is_relative_to_a_jobs_least(tmp_path: Path) -> None:
    cluster = Cluster(num_nodes=1)
    (job,) = run(tmp_path, lambda *_: {"a": ((0, 2),)}, made_job("a")).jobs
    values = SiaPolicy().normalised_goodput([job], configurations(cluster), cluster)
    assert values[0, 0] == 1.0
    assert values[0, 1] > 1.0


def test_that_placement_evicts_smaller_jobs_and_places_them_again() -> None:
    """c needs a whole node; both have one GPU in use: one of the two is evicted."""
    kept = {"a": ((0, 1),), "b": ((1, 1),)}
    wanted = {"a": shape(1), "b": shape(1), "c": shape(4)}
    placed = place(wanted, kept, frozenset({"b"}), Cluster(num_nodes=2))
    assert placed == {"b": ((1, 1),), "c": ((0, 4),), "a": ((1, 1),)}


def test_that_a_job_that_does_not_fit_gets_nothing() -> None:
    kept = {"a": ((0, 1),), "b": ((1, 1),)}
    wanted = {"a": shape(1), "b": shape(1), "c": shape(4)}
    placed = place(wanted, kept, frozenset({"a", "b"}), Cluster(num_nodes=2))
    assert placed == kept


def test_that_powers_of_two_always_fit() -> None:
    wanted = {f"j{index}": shape(size) for index, size in enumerate([1, 2, 1, 4, 2, 1, 1, 4])}
    placed = place(wanted, {}, frozenset(), Cluster(num_nodes=4))
    assert len(placed) == 8
    assert place({"d": shape(8, 2)}, {}, frozenset(), Cluster(num_nodes=2)) == {"d": ((0, 4), (1, 4))}


def test_that_nothing_but_the_caller_writes_to_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS does now and then; what is written around it must not be lost either."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        worth = 1 + rng.exponential(size=(12, 5)) * (rng.random((12, 5)) < 0.7)
        print(len(choose(worth, configurations(EXAMPLE), EXAMPLE, pinned={})))
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 20
    assert all(1 <= int(line) <= 6 for line in lines)


def test_that_a_job_starts_on_one_gpu_and_doubles(tmp_path: Path) -> None:
    result = run(tmp_path, SiaPolicy(), made_job("a"), cluster=Cluster(num_nodes=2, interval_s=40))
    counts = [sum(gpus for _, gpus in record.allocations["a"]) for record in result.rounds]
    assert counts[0] == 1
    assert counts[1] == 2, "nothing on more GPUs was slower yet"
    assert all(later <= 2 * max(counts[: index + 1]) for index, later in enumerate(counts[1:]))


@pytest.mark.parametrize(
    ("age_s", "num_restarts", "factor"),
    [(100, 1, 70 / 130), (100, 0, 100 / 130), (29, 3, 1.0), (60, 9, 1e-4)],
)
def test_that_a_restart_costs_what_restarts_have_cost(age_s: float, num_restarts: int, factor: float) -> None:
    assert restart_factor(age_s, num_restarts, 30.0) == pytest.approx(factor)


@pytest.mark.parametrize(("num_restarts", "num_gpus"), [(0, 2), (10, 1)])
def test_that_a_job_that_restarted_often_stays_as_it_is(
    tmp_path: Path, num_restarts: int, num_gpus: int
) -> None:
    (job,) = run(tmp_path, lambda *_: {"a": ((0, 1),)}, made_job("a")).jobs
    job.allocation, job.epoch, job.progress = ((0, 1),), 0, 0.0  # it begins again, knowing what it learned
    job.num_restarts = num_restarts
    given = SiaPolicy().allocate(400.0, [job], Cluster(num_nodes=1))
    assert given == {"a": ((0, num_gpus),)}


def test_that_jobs_share_a_cluster(tmp_path: Path) -> None:
    jobs = [made_job(f"j{index}", at_s=10.0 * index) for index in range(6)]
    result = run(tmp_path, SiaPolicy(), *jobs, cluster=Cluster(num_nodes=1))
    assert max(len(record.allocations) for record in result.rounds) == 4
    again = run(tmp_path / "again", SiaPolicy(), *jobs, cluster=Cluster(num_nodes=1))
    assert [job.finished_s for job in result.jobs] == [job.finished_s for job in again.jobs]


@pytest.mark.parametrize("options", [{"power": 0.5}, {"no_allocation": 1.0}])
def test_that_impossible_parameters_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(SimulationError):
        SiaPolicy(**options)
