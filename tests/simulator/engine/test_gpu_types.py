"""Clusters of several GPU types: how fast jobs are there, and how policies deal with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pollux_slurm.errors import SimulationError, TraceError
from pollux_slurm.model import Objective
from pollux_slurm.simulator import (
    Application,
    Cluster,
    NodeGroup,
    read_applications,
    simulate,
    slurm_rules,
)
from pollux_slurm.simulator.engine.cluster import with_traced_speeds
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.policies import PolluxPolicy, SiaPolicy, SlurmPolicy
from tests.simulator.builders import made_job, write_traces
from tests.simulator.scripted import Scripted, run

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
    special = NodeGroup(num_nodes=1, gpu_type="v100", speed=2.0, speeds=(("made", 5.0),))
    cluster = Cluster(groups=(special,), restart_delay_s=0)
    (job,) = run(tmp_path, lambda *_: {"a": ((0, 1),)}, made_job("a"), cluster=cluster).jobs
    assert job.finished_s == pytest.approx(60 + 150.25 / 5, abs=1)


def write_types(folder: Path, step_s: float) -> Mapping[str, Application]:
    """Write step times on v100: `step_s` on one GPU, half of it on two, 0.05 s for synchronisation."""
    write_traces(folder / "made")
    lines = [
        f"{placement},{size},{time_s},0.05"
        for placement, time_s in (("1", step_s), ("2", step_s / 2))
        for size in (2, 16)
    ]
    head = "placement,local_bsz,step_time,sync_time\n"
    (folder / "made" / "placements-v100.csv").write_text(head + "\n".join(lines) + "\n")
    return read_applications(folder)


V100 = NodeGroup(num_nodes=1, gpu_type="v100")


@pytest.mark.parametrize(("node", "gpus", "step_s"), [(0, 1, 1.0), (1, 1, 0.2), (1, 2, 0.1)])
def test_that_a_type_has_the_step_times_of_its_own_file(
    tmp_path: Path, node: int, gpus: int, step_s: float
) -> None:
    applications = write_types(tmp_path, 0.2)
    cluster = Cluster(groups=(NodeGroup(num_nodes=1), V100), restart_delay_s=0)
    policy = Scripted(lambda *_: {"a": ((node, gpus),)})
    result = simulate([made_job("a")], applications, policy, cluster)
    assert result.jobs[0].finished_s == pytest.approx(60 + 150.25 * step_s, abs=1)
    assert [group.common_speed for group in result.cluster.groups] == pytest.approx([1.0, 5.0])


def test_that_files_of_a_type_are_not_overlooked(tmp_path: Path) -> None:
    applications = write_types(tmp_path, 0.2)
    for group, message in (
        (replace(V100, speed=2.0), "every application has step times on v100: leave out its speed"),
        (replace(V100, speeds=(("made", 2.0),)), "made has step times on v100: leave out its speed"),
        (replace(V100, speeds=(("bort", 2.0),)), r"no traces of application 'bort' \(there are: made\)"),
    ):
        with pytest.raises(SimulationError, match=message):
            simulate([made_job("a")], applications, SlurmPolicy(), Cluster(groups=(group,)))
    write_traces(tmp_path / "other")
    applications = read_applications(tmp_path)
    with pytest.raises(
        SimulationError,
        match=r"other has no placements-v100.csv, unlike made: give its speed, such as 1x4:v100,other=2",
    ):
        simulate([made_job("a")], applications, SlurmPolicy(), Cluster(groups=(V100,)))
    (tmp_path / "other" / "placements.csv").rename(tmp_path / "other" / "placements-v100.csv")
    with pytest.raises(
        TraceError, match=r"other: placements-v100.csv, but no placements.csv: copy placements-TYPE"
    ):
        read_applications(tmp_path)


def test_that_a_type_without_step_times_and_speed_is_refused(tmp_path: Path) -> None:
    write_traces(tmp_path / "made")
    applications, a10 = read_applications(tmp_path), replace(V100, gpu_type="a10")

    def speeds(*groups: NodeGroup) -> list[float]:
        return [
            one.speed_of("made") for one in with_traced_speeds(Cluster(groups=groups), applications).groups
        ]

    plain, fast = NodeGroup(num_nodes=1), replace(V100, speed=2.0)
    assert (speeds(a10), speeds(a10, fast), speeds(plain, fast)) == ([1.0], [1.0, 2.0], [1.0, 2.0])
    assert speeds(plain, replace(a10, speed=1.0)) == [1.0, 1.0]
    for groups in ((plain, a10), (V100, a10)):
        with pytest.raises(SimulationError, match=r"neither .* nor a speed \(there are: t4\)"):
            speeds(*groups)
    applications = write_types(tmp_path / "typed", 0.2)
    assert speeds(plain, V100, replace(a10, speed=2.0)) == pytest.approx([1.0, 5.0, 2.0])
    for groups in ((a10,), (V100, a10)):
        with pytest.raises(
            SimulationError, match=r"GPUs of type a10 .*\(there are: t4, v100\): .* such as 1x4:a10=2"
        ):
            speeds(*groups)


def test_that_other_applications_keep_the_speed_of_the_type(tmp_path: Path) -> None:
    write_types(tmp_path, 0.2)
    write_traces(tmp_path / "other")
    cluster = Cluster(groups=(replace(V100, speeds=(("other", 2.0),)),), restart_delay_s=0)
    policy = Scripted(lambda *_: {"a": ((0, 1),)})
    job = replace(made_job("a"), application="other")
    result = simulate([job], read_applications(tmp_path), policy, cluster)
    assert result.jobs[0].finished_s == pytest.approx(60 + 150.25 / 2, abs=1)
    assert result.cluster.groups[0].speed == pytest.approx(10**0.5)


def test_that_a_jobs_measurements_are_by_gpu_type(tmp_path: Path) -> None:
    def moved(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        return {"a": ((0, 1),) if now_s < 60 else ((2, 1),)}

    (job,) = run(tmp_path, moved, made_job("a"), cluster=MIXED).jobs
    by_type = job.measured.by_type
    assert {kind: [one.last_time_s for one in seen.values()] for kind, seen in by_type.items()} == {
        "t4": [1.0],
        "a100": [0.4],
    }


@pytest.mark.parametrize("objective", ["generalized-mean", "price-rank"])
def test_that_the_daemons_policy_has_models_by_gpu_type(tmp_path: Path, objective: str) -> None:
    """A lone job ends up on the fast node; with more jobs, all GPUs of both types are used, never mixed."""
    policy = PolluxPolicy(Objective(name=objective), declared=True)
    (alone,) = run(tmp_path / "alone", policy, made_job("a"), cluster=MIXED).jobs
    assert "a100" in alone.measured.by_type
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
