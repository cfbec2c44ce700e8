"""The baselines against the published figures, and the daemon's policy in the simulation."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.errors import UsageError
from pollux_slurm.model import Objective
from pollux_slurm.simulator import (
    OSDI21,
    Application,
    Cluster,
    Rules,
    read_applications,
    read_workload,
    simulate,
    slurm_rules,
)
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.policies import PolluxPolicy, make_policy
from pollux_slurm.simulator.policies.packing import FreeGpus
from pollux_slurm.simulator.results.summary import Summary, make_outcome
from tests.published import traces_dir, workload_file
from tests.simulator.builders import made_application, made_job


@functools.cache
def published() -> Mapping[str, Application]:
    return read_applications(traces_dir())


def replay(workload: int, policy: str, rules: Rules = OSDI21) -> Summary:
    jobs = read_workload(workload_file(workload), published())
    made = make_policy(policy, objective="generalized-mean", declared=False)
    result = simulate(jobs, published(), made, Cluster(), rules=rules)
    return make_outcome(result, policy=policy, objective=None, workload=str(workload), wall_s=0.0).summary


@pytest.mark.parametrize(
    ("policy", "workload", "average_s"),
    [
        ("tiresias", 1, 2473.65),
        ("tiresias", 3, 3876.26),
        ("tiresias", 6, 3469.69),
        ("optimus", 1, 4087.06),
        ("optimus", 3, 3944.01),
        ("optimus", 6, 5301.88),
    ],
)
def test_that_the_published_averages_are_reproduced_to_the_second_decimal(
    policy: str, workload: int, average_s: float
) -> None:
    summary = replay(workload, policy)
    assert len(summary.jobs) == 160
    assert round(summary.avg_jct_s, 2) == average_s


@pytest.mark.parametrize(
    ("policy", "average_s"), [("tiresias", 2478.827359368697), ("slurm", 4837.942486580778)]
)
def test_that_rules_slurm_have_the_same_averages_to_the_last_digit(policy: str, average_s: float) -> None:
    assert replay(1, policy, slurm_rules(adaptive_share=float(policy != "slurm"))).avg_jct_s == average_s


def test_that_the_papers_search_and_ours_have_similar_completion_times() -> None:
    """A short part of what docs/evaluation.md has in full: 16 jobs, 4 nodes, a tenth of the generations."""
    small = ("cifar10", "deepspeech2", "ncf", "bert")
    jobs = [job for job in read_workload(workload_file(6), published()) if job.application in small][:16]
    averages = []
    for solver, effort in (("search", 0.02), ("genetic", 0.1)):
        policy = PolluxPolicy(Objective(name="osdi21"), solver=solver, effort=effort)
        result = simulate(jobs, published(), policy, Cluster(num_nodes=4))
        outcome = make_outcome(result, policy=solver, objective=None, workload="6", wall_s=0.0)
        averages.append(outcome.summary.avg_jct_s)
    exact, genetic = averages
    assert genetic == pytest.approx(exact, rel=0.05)
    assert genetic != exact, "two searches, not one"


def test_that_the_emptiest_node_is_taken_first() -> None:
    free = FreeGpus(Cluster(num_nodes=3), [((0, 2),), ((1, 4),)])
    assert free.take(5) == ((2, 4), (0, 1))


def test_that_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown policy 'best'"):
        make_policy("best", objective="generalized-mean", declared=False)


def test_that_the_daemons_policy_grows_a_lone_job_as_it_measures(tmp_path: Path) -> None:
    """One GPU first, then at most four times the most it was measured on."""
    made = {"made": made_application(tmp_path)}
    policy = make_policy("pollux", objective="generalized-mean", declared=False)
    result = simulate([made_job("a")], made, policy, Cluster(num_nodes=2, interval_s=40))
    counts = [sum(gpus for _, gpus in record.allocations["a"]) for record in result.rounds]
    assert counts[0] == 1
    assert max(counts) > 1
    assert all(later <= 4 * max(counts[: index + 1]) for index, later in enumerate(counts[1:]))


def test_that_the_daemons_policy_runs_jobs_side_by_side(tmp_path: Path) -> None:
    made = {"made": made_application(tmp_path)}
    policy = make_policy("pollux", objective="generalized-mean", declared=True)
    jobs = [made_job(f"j{index}", at_s=10.0 * index) for index in range(6)]
    first = simulate(jobs, made, policy, Cluster(num_nodes=1))
    assert max(len(record.allocations) for record in first.rounds) == 4, "four GPUs serve four jobs"
    again = make_policy("pollux", objective="generalized-mean", declared=True)
    second = simulate(jobs, made, again, Cluster(num_nodes=1))
    assert [job.finished_s for job in first.jobs] == [job.finished_s for job in second.jobs]


@pytest.mark.parametrize("between", ["users", "accounts"])
def test_that_a_user_with_eight_jobs_keeps_no_other_waiting(tmp_path: Path, between: str) -> None:
    made = {"made": made_application(tmp_path)}
    many = [dataclasses.replace(made_job(f"m{i}"), user="mallory", account="red") for i in range(8)]
    jobs = [*many, dataclasses.replace(made_job("a"), user="ann", account="blue")]

    def started_s(between: str) -> float | None:
        policy = RunSettings(between=between).make_policy()
        result = simulate(jobs, made, policy, Cluster(num_nodes=1))
        return result.jobs[-1].first_started_s

    assert started_s(between) == 60.0
    later = started_s("jobs")
    assert later is not None
    assert later > 60.0


class FiveHoursOverError(Exception):
    """The simulated time is over."""


class FirstHours(PolluxPolicy):
    """The policy in the first five hours; `held` sums the GPUs of each user over the rounds."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.held: Counter[str] = Counter()

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        if now_s >= 5 * 3600:
            raise FiveHoursOverError
        found = super().allocate(now_s, jobs, cluster)
        for job in jobs:
            self.held[job.job.user] += sum(gpus for _, gpus in found.get(job.job.name, ()))
        return found


def test_that_with_memory_a_user_who_comes_an_hour_later_has_as_many_gpu_hours_in_the_end(
    tmp_path: Path,
) -> None:
    made = {"made": made_application(tmp_path)}
    # Forty minutes each on one GPU; more jobs than GPUs up to the fifth hour.
    jobs = [
        dataclasses.replace(made_job(f"{user}-{number}", at_s=at_s), user=user, work=16.0)
        for user, at_s, count in (("ada", 0.0, 80), ("bob", 3600.0, 70))
        for number in range(count)
    ]

    policy = FirstHours(Objective(between="users"), share_half_life_s=7 * 86400.0)
    with contextlib.suppress(FiveHoursOverError):
        simulate(jobs, made, policy, Cluster(num_nodes=4, interval_s=240.0))
    # Without memory it is 0.35.
    assert policy.held["bob"] / policy.held.total() == pytest.approx(0.5, rel=0.05)


def test_that_optimus_knows_the_work_of_a_job(tmp_path: Path) -> None:
    """Of three GPUs, the third goes to the job with twice the steps."""
    jobs = [made_job("one", batch_size=32), dataclasses.replace(made_job("two", batch_size=32), work=2.0)]
    policy = make_policy("optimus", objective="generalized-mean", declared=False)
    result = simulate(
        jobs, {"made": made_application(tmp_path)}, policy, Cluster(num_nodes=1, gpus_per_node=3)
    )
    first = result.rounds[0].allocations
    assert {name: sum(gpus for _, gpus in nodes) for name, nodes in first.items()} == {"one": 1, "two": 2}
