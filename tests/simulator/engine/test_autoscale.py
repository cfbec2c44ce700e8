"""Clusters that grow and shrink: how many nodes, when they are there, and what is paid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from pollux_slurm.errors import SimulationError
from pollux_slurm.model import Objective
from pollux_slurm.simulator import (
    Cluster,
    NodeGroup,
    SimulationResult,
    read_application,
    simulate,
    slurm_rules,
)
from pollux_slurm.simulator.engine.autoscale import Autoscaler, NodeSupply, ScalingLimits, UtilityAutoscaler
from pollux_slurm.simulator.engine.cluster import SchedulingPolicy
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.workload import WorkloadJob
from pollux_slurm.simulator.policies import PolluxPolicy
from pollux_slurm.simulator.policies.adaptive.agents import Agents
from tests.published import traces_dir
from tests.simulator.builders import made_application, made_job
from tests.simulator.scripted import Scripted, run

NODES = Cluster(num_nodes=16, gpus_per_node=1, restart_delay_s=0)


class SquareRoot(Scripted):
    """A policy of one job that gets one GPU, of which K would be worth √K: the utility of n nodes is n^−½."""

    def __init__(self) -> None:
        super().__init__(lambda now_s, jobs: {"a": ((0, 1),)})

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        return {"a": tuple((node, gpus) for node, gpus in enumerate(cluster.node_gpus) if gpus)}

    def goodput(self, job: SimulatedJob, num_nodes: int, num_gpus: int) -> float | None:
        return 7.0 * math.sqrt(num_gpus)


class Scheduled:
    """An autoscaler with given numbers of nodes by time."""

    limits = ScalingLimits(min_nodes=1, boot_s=90.0)

    def __init__(self, counts: Mapping[float, int]) -> None:
        self._counts = counts

    def num_nodes(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster, nodes: Sequence[int], present: int
    ) -> int:
        return self._counts.get(now_s, present)


def scaled(
    tmp_path: Path,
    policy: SchedulingPolicy,
    autoscaler: Autoscaler,
    *jobs: WorkloadJob,
    cluster: Cluster = NODES,
) -> SimulationResult:
    made = {"made": made_application(tmp_path)}
    return simulate(jobs, made, policy, cluster, autoscaler=autoscaler)


@pytest.mark.parametrize(
    ("low", "high", "present", "wanted"),
    [
        (0.4, 0.6, 1, 4),  # 4^−½ is in the middle
        (0.4, 0.6, 16, 4),
        (0.4, 0.6, 5, 5),  # 0.447 lies between
        (0.2, 0.24, 4, 16),  # as many as there can be: 0.25
        (0.9, 1.0, 16, 1),
    ],
)
def test_that_utility_is_kept_between_its_thresholds(
    tmp_path: Path, low: float, high: float, present: int, wanted: int
) -> None:
    policy = SquareRoot()
    (job,) = run(tmp_path, lambda *_: {"a": ((0, 1),)}, made_job("a"), cluster=NODES).jobs
    autoscaler = UtilityAutoscaler(policy, low=low, high=high)
    job.allocation = ((15, 1),)  # on the first node to go
    assert autoscaler.num_nodes(60.0, [job], NODES, range(16), present) == wanted
    assert job.allocation == ((15, 1),), "it was only asked"
    assert autoscaler.num_nodes(60.0, [], NODES, range(16), present) == 1


def test_that_a_node_is_paid_for_from_its_request_and_used_once_it_is_up(tmp_path: Path) -> None:
    """Asked for at 60 s, up at 150 s, seen by the round at 180 s; the job ends at 60 + 150 s."""
    policy = Scripted(lambda now_s, jobs: {"a": ((0, 1),)})
    result = scaled(tmp_path, policy, Scheduled({60.0: 3}), made_job("a"))
    assert [record.nodes_up for record in result.rounds] == [1, 1, 3]
    assert policy.seen[120.0] == (1,) + (0,) * 15
    assert policy.seen[180.0] == (1, 1, 1) + (0,) * 13
    assert result.node_seconds == {"t4": 60 + 150 * 3}


def test_that_the_least_used_node_is_given_back_and_its_job_moves(tmp_path: Path) -> None:
    """Two nodes until 240 s, then one: b's, which is the fuller, and a moves there."""

    def rule(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        if policy.seen[now_s] == (2, 2):
            return {"a": ((0, 1),), "b": ((1, 2),)}
        return {job.job.name: ((1, 1),) for job in jobs}

    policy = Scripted(rule)
    scheduled = Scheduled({60.0: 2, 240.0: 1})
    scheduled.limits = ScalingLimits(boot_s=0.0)
    cluster = Cluster(num_nodes=2, gpus_per_node=2, restart_delay_s=0)
    jobs = [made_job("a", at_s=130), made_job("b", at_s=130, num_replicas=2)]
    result = scaled(tmp_path, policy, scheduled, *jobs, cluster=cluster)
    assert policy.seen[180.0] == (2, 2)
    assert policy.seen[240.0] == (0, 2)
    assert [job.num_restarts for job in result.jobs] == [1, 1]


def test_that_a_cluster_without_jobs_shrinks(tmp_path: Path) -> None:
    policy = PolluxPolicy(Objective())
    autoscaler = UtilityAutoscaler(policy, low=0.3, high=0.5, limits=ScalingLimits(boot_s=0.0))
    jobs = [*(made_job(f"j{index}") for index in range(8)), made_job("late", at_s=3000)]
    cluster = Cluster(num_nodes=4, gpus_per_node=2, restart_delay_s=0)
    result = scaled(tmp_path, policy, autoscaler, *jobs, cluster=cluster)
    up = {record.at_s: record.nodes_up for record in result.rounds}
    assert max(up.values()) == 4
    assert up[3000.0] < 4
    always = simulate(
        jobs, {"made": made_application(tmp_path / "again")}, PolluxPolicy(Objective()), cluster
    )
    assert sum(result.node_seconds.values()) < sum(always.node_seconds.values())


def test_that_a_cluster_of_one_size_is_paid_for_from_the_first_job_to_the_last(tmp_path: Path) -> None:
    result = run(tmp_path, lambda *_: {"a": ((0, 1),)}, made_job("a", at_s=25), cluster=NODES)
    assert result.node_seconds == {"t4": 16 * (60 + 150 - 25)}


def test_that_throughput_based_scaling_requests_more_nodes_than_goodput_based(tmp_path: Path) -> None:
    """A batch of 32 gains less than four times as much as one of 8: only goodput knows."""
    cluster = Cluster(num_nodes=4, restart_delay_s=0, interval_s=10)

    def wider(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        return {"a": ((0, 1),) if now_s < 20 else ((0, 2),) if now_s < 30 else ((0, 4), (1, 4))}

    (job,) = run(tmp_path, wider, made_job("a", batch_size=32), cluster=cluster).jobs
    job.allocation, job.epoch, job.progress = (), 0, 0.0  # it begins again, knowing what it learned
    wanted = []
    for by_throughput in (False, True):
        policy = PolluxPolicy(Objective(), agents=Agents(by_throughput=by_throughput))
        autoscaler = UtilityAutoscaler(policy, low=0.2, high=0.3)
        wanted.append(autoscaler.num_nodes(60.0, [job], cluster, range(4), 4))
    assert wanted == [2, 3]


def test_that_the_number_of_nodes_is_stable_while_the_policy_is_only_consulted() -> None:
    """By throughput one job uses 15 nodes or all 16, by its last measurement."""
    policy = PolluxPolicy(Objective(), agents=Agents(by_throughput=True))
    job = WorkloadJob(name="a", submitted_s=0.0, application="imagenet", num_replicas=1, batch_size=200)
    result = simulate(
        [job],
        {"imagenet": read_application(traces_dir() / "imagenet")},
        policy,
        Cluster(num_nodes=16),
        rules=slurm_rules(),
        autoscaler=UtilityAutoscaler(policy, low=0.35, high=0.65),
    )
    up = [record.nodes_up for record in result.rounds]
    assert max(up) >= 15
    assert sum(before != after for before, after in pairwise(up)) < 22


def test_that_impossible_scaling_is_refused() -> None:
    policy = SquareRoot()
    for low, high in ((0.0, 0.5), (0.6, 0.5), (0.5, 1.1)):
        with pytest.raises(SimulationError, match="utilities"):
            UtilityAutoscaler(policy, low=low, high=high)
    with pytest.raises(SimulationError, match="at least one node"):
        ScalingLimits(min_nodes=0)
    with pytest.raises(SimulationError, match="boots in 0 s or more"):
        ScalingLimits(boot_s=-1)
    mixed = Cluster(groups=(NodeGroup(num_nodes=1), NodeGroup(num_nodes=1, gpu_type="a100")))
    with pytest.raises(SimulationError, match="one GPU type"):
        NodeSupply(Scheduled({}), mixed)
    few = Scheduled({})
    few.limits = ScalingLimits(min_nodes=17)
    with pytest.raises(SimulationError, match="17 nodes at least"):
        NodeSupply(few, NODES)
