"""Clusters of several GPU types: how fast jobs are there, and how policies deal with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pollux_slurm.errors import SimulationError
from pollux_slurm.model import Objective
from pollux_slurm.simulator import Cluster, NodeGroup, slurm_rules
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.policies import PolluxPolicy, SiaPolicy, SlurmPolicy
from tests.simulator.builders import made_job
from tests.simulator.scripted import run

MIXED = Cluster(
    groups=(NodeGroup(num_nodes=2), NodeGroup(num_nodes=1, gpu_type="a100", speed=2.5)),
    interval_s=30,
    restart_delay_s=0,
)


@pytest.mark.parametrize(
    ("allocation", "step_s"),
    [
        (((0, 1),), 1.0),
        (((2, 1),), 1.0 / 2.5),
        # 0.4 s of computing and 0.1 s of synchronisation, which no GPU makes faster.
        (((0, 2),), 0.5),
        (((2, 2),), 0.4 / 2.5 + 0.1),
        # The slowest GPU determines the speed.
        (((1, 1), (2, 1)), 0.5),
    ],
)
def test_that_only_computing_takes_less_on_a_faster_gpu(
    tmp_path: Path, allocation: GpusByNode, step_s: float
) -> None:
    (job,) = run(tmp_path, lambda *_: {"a": allocation}, made_job("a"), cluster=MIXED).jobs
    assert job.finished_s == pytest.approx(30 + 150.25 * step_s, abs=1)


def test_that_an_application_may_have_a_speed_of_its_own(tmp_path: Path) -> None:
    special = NodeGroup(num_nodes=1, gpu_type="v100", speed=2.0, speeds=(("made", 5.0), ("other", 3.0)))
    cluster = Cluster(groups=(special,), restart_delay_s=0)
    (job,) = run(tmp_path, lambda *_: {"a": ((0, 1),)}, made_job("a"), cluster=cluster).jobs
    assert job.finished_s == pytest.approx(60 + 150.25 / 5, abs=1)


def test_that_a_jobs_measurements_are_by_gpu_type(tmp_path: Path) -> None:
    def moved(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        return {"a": ((0, 1),) if now_s < 60 else ((2, 1),)}

    (job,) = run(tmp_path, moved, made_job("a"), cluster=MIXED).jobs
    assert {kind: [one.last_time_s for one in seen.values()] for kind, seen in job.measurements.items()} == {
        "t4": [1.0],
        "a100": [0.4],
    }


@pytest.mark.parametrize("objective", ["generalized-mean", "price-rank"])
def test_that_the_daemons_policy_has_models_by_gpu_type(tmp_path: Path, objective: str) -> None:
    """A lone job ends up on the fast node; with more jobs, all GPUs of both types are used, never mixed."""
    policy = PolluxPolicy(Objective(name=objective), declared=True)
    (alone,) = run(tmp_path / "alone", policy, made_job("a"), cluster=MIXED).jobs
    assert "a100" in alone.measurements
    policy = PolluxPolicy(Objective(name=objective), declared=True)
    jobs = [made_job(f"j{index}") for index in range(10)]
    result = run(tmp_path / "many", policy, *jobs, cluster=MIXED)
    types = MIXED.node_types
    for record in result.rounds:
        for allocation in record.allocations.values():
            assert len({types[node] for node, _ in allocation}) == 1
    first = result.rounds[0].allocations.values()
    assert {types[node] for allocation in first for node, _ in allocation} == {"t4", "a100"}


@pytest.mark.parametrize("policy", [SiaPolicy, SlurmPolicy])
def test_that_the_baselines_give_a_job_gpus_of_one_type(
    tmp_path: Path, policy: type[SiaPolicy] | type[SlurmPolicy]
) -> None:
    jobs = [made_job(f"j{index}", num_replicas=1 + 2 * (index % 2), batch_size=16) for index in range(8)]
    result = run(tmp_path, policy(), *jobs, cluster=MIXED)
    types = MIXED.node_types
    used = set()
    for record in result.rounds:
        for allocation in record.allocations.values():
            (kind,) = {types[node] for node, _ in allocation}
            used.add(kind)
    assert used == {"t4", "a100"}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_that_users_take_the_fastest_gpus_that_are_free(tmp_path: Path, share: float) -> None:
    """Whether the policy is Slurm's, or the jobs are beside it: four on the fast node, then the others."""
    jobs = [made_job(f"j{index}") for index in range(6)]
    rules = slurm_rules(adaptive_share=share)
    result = run(tmp_path, SlurmPolicy(), *jobs, cluster=MIXED, rules=rules)
    first = result.rounds[0].allocations
    assert [first[f"j{index}"][0][0] for index in range(6)] == [2, 2, 2, 2, 0, 0]


@pytest.mark.parametrize(
    "groups",
    [
        ({"num_nodes": 0},),
        ({"num_nodes": 1, "gpus_per_node": 0},),
        ({"num_nodes": 1, "gpu_type": ""},),
        ({"num_nodes": 1, "speed": 0.0},),
        ({"num_nodes": 1, "speed": float("inf")},),
        ({"num_nodes": 1, "speeds": (("made", -1.0),)},),
        ({"num_nodes": 1, "speed": 2.0}, {"num_nodes": 1, "speed": 3.0}),
    ],
)
def test_that_impossible_groups_are_refused(groups: tuple[dict[str, object], ...]) -> None:
    with pytest.raises(SimulationError):
        Cluster(groups=tuple(NodeGroup(**group) for group in groups))  # type: ignore[arg-type]


def test_that_a_job_too_large_for_any_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="at most 8 of one type"):
        run(tmp_path, SlurmPolicy(), made_job("a", num_replicas=9, batch_size=32), cluster=MIXED)
