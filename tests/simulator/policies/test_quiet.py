"""Rounds in which nothing happens, and those that only look like it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pollux_slurm.goodput import Observation
from pollux_slurm.model import Objective
from pollux_slurm.simulator import Application, Cluster, simulate
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.policies import PolluxPolicy
from pollux_slurm.simulator.policies.quiet import QuietRounds
from tests.simulator.builders import made_application, made_job

CLUSTER = Cluster(num_nodes=2)
HELD: Mapping[str, GpusByNode] = {"a": ((0, 4),), "b": ((1, 2),)}


@pytest.fixture
def application(tmp_path: Path) -> Application:
    return made_application(tmp_path)


def seen(num_nodes: int, num_gpus: int, size: int = 4) -> Observation:
    return Observation(
        num_nodes=num_nodes, num_gpus=num_gpus, atomic_batch_size=size, grad_time_s=1.0, iter_time_s=1.0
    )


@pytest.fixture
def jobs(application: Application) -> list[SimulatedJob]:
    policy = PolluxPolicy(Objective())
    found = []
    for name, allocation in HELD.items():
        job = SimulatedJob(job=made_job(name), application=application, choose_batch=policy.choose_batch)
        job.allocation = allocation
        job.measurements = {"t4": {(1, sum(gpus for _, gpus in allocation), 4): seen(1, 4)}}
        found.append(job)
    return found


def decided(jobs: Sequence[SimulatedJob], *, at_s: float = 10_000.0) -> QuietRounds:
    quiet = QuietRounds(5)
    quiet.decided(at_s, jobs, CLUSTER, HELD)
    return quiet


def test_that_an_answer_stands_for_its_time_where_nothing_happens(jobs: list[SimulatedJob]) -> None:
    quiet = decided(jobs)
    assert quiet.stands(10_060.0, jobs, CLUSTER)
    assert quiet.stands(10_300.0, jobs, CLUSTER)
    assert not quiet.stands(10_360.0, jobs, CLUSTER)


def test_that_it_stands_for_a_part_of_the_youngest_jobs_age(jobs: list[SimulatedJob]) -> None:
    quiet = decided(jobs, at_s=480.0)
    assert quiet.stands(600.0, jobs, CLUSTER)
    assert not quiet.stands(660.0, jobs, CLUSTER)


def test_that_one_who_comes_or_ends_is_an_event(jobs: list[SimulatedJob], application: Application) -> None:
    quiet = decided(jobs)
    new = SimulatedJob(
        job=made_job("c", at_s=10_001.0), application=application, choose_batch=jobs[0].choose_batch
    )
    assert not quiet.stands(10_060.0, [*jobs, new], CLUSTER)
    assert not quiet.stands(10_060.0, jobs[:1], CLUSTER)


def test_that_gpus_measured_for_the_first_time_are_an_event_and_another_batch_is_none(
    jobs: list[SimulatedJob],
) -> None:
    quiet = decided(jobs)
    jobs[0].measurements["t4"][1, 4, 5] = seen(1, 4, 5)
    assert quiet.stands(10_060.0, jobs, CLUSTER)
    jobs[0].measurements["t4"][2, 4, 5] = seen(2, 4, 5)
    assert not quiet.stands(10_060.0, jobs, CLUSTER)


def test_that_a_failure_and_a_node_that_is_gone_are_events(jobs: list[SimulatedJob]) -> None:
    quiet = decided(jobs)
    assert not quiet.stands(10_060.0, jobs, dataclasses.replace(CLUSTER, available=(4, 3)))
    jobs[1].allocation = ()
    assert not quiet.stands(10_060.0, jobs, CLUSTER)


def test_that_patience_saves_decisions_and_none_decides_each_round(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = [made_job(f"j{number}", at_s=30.0 * number) for number in range(3)]
    asked = []
    decide = PolluxPolicy.consider

    def counted(
        self: PolluxPolicy, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        asked.append(now_s)
        return decide(self, now_s, jobs, cluster)

    monkeypatch.setattr(PolluxPolicy, "consider", counted)
    counts = {}
    for patience in (0, 5):
        asked.clear()
        policy = PolluxPolicy(Objective(), patience_rounds=patience)
        result = simulate(workload, {"made": application}, policy, Cluster(num_nodes=1, interval_s=5.0))
        counts[patience] = (len(asked), len(result.rounds))
    assert counts[0][0] == counts[0][1]
    assert counts[5][0] < counts[5][1]


def test_that_a_question_between_two_rounds_changes_neither(application: Application) -> None:
    """An answer that stands gives each job the very allocation that it has; a decision makes new ones."""
    policy = PolluxPolicy(Objective())
    job = SimulatedJob(job=made_job("a"), application=application, choose_batch=policy.choose_batch)
    held = policy.allocate(10_000.0, [job], CLUSTER)["a"]
    job.allocation = held
    smaller = policy.consider(10_060.0, [job], CLUSTER.with_available((1, 0)))["a"]
    assert smaller is not held
    assert policy.allocate(10_060.0, [job], CLUSTER)["a"] is held
