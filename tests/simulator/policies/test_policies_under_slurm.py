"""Every policy under everything that the rules `slurm` can do to a cluster, drawn by seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pollux_slurm.simulator import (
    Application,
    Cluster,
    Delays,
    Failures,
    NodeGroup,
    UnmanagedJob,
    read_application,
    simulate,
    slurm_rules,
)
from pollux_slurm.simulator.engine.cluster import SchedulingPolicy
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.engine.random_events import draw_unmanaged_jobs
from pollux_slurm.simulator.policies import POLICIES, SHARING, make_policy
from tests.simulator.builders import made_job, write_traces

# The first is slow; the others need a program, or rules without delays.
EXCLUDED = {"genetic", "external", *SHARING}

_OBJECTIVES = ("generalized-mean", "osdi21", "price-rank", "attained-work")


@pytest.fixture
def made(tmp_path: Path) -> Mapping[str, Application]:
    folder = write_traces(tmp_path / "made")
    with (folder / "placements.csv").open("a", encoding="utf-8") as file:
        file.write("111,2,0.5,0.1\n111,16,0.5,0.1\n")
    return {"made": read_application(folder)}


def drawn_cluster(rng: random.Random) -> Cluster:
    mixed = (
        NodeGroup(num_nodes=rng.randint(1, 2)),
        NodeGroup(num_nodes=rng.randint(1, 2), gpu_type="a100", speed=2.0),
    )
    return Cluster(
        interval_s=rng.choice((20, 30, 60)),
        restart_delay_s=rng.choice((0, 10, 30)),
        longest_s=40 * 86400.0,
        num_nodes=rng.randint(1, 4),
        gpus_per_node=rng.choice((2, 4)),
        groups=mixed if rng.random() < 0.3 else (),
    )


@pytest.mark.parametrize(
    "policy", [name for name in POLICIES if name not in {"genetic", "external", *SHARING}]
)
def test_that_the_accounts_of_gpu_time_balance_whatever_happens(
    policy: str, made: Mapping[str, Application]
) -> None:
    for seed in range(8):
        rng = random.Random(f"{policy} {seed}")
        cluster = drawn_cluster(rng)
        jobs = [
            made_job(
                f"j{index}",
                at_s=rng.random() * 600,
                num_replicas=rng.choice((1, 1, 2)),
                batch_size=rng.choice((8, 16, 32)),
            )
            for index in range(rng.randint(1, 10))
        ]
        rules = slurm_rules(
            delays=Delays(requeue_s=rng.choice((2.7, 121)), backfill_s=rng.choice((0, 15))),
            unmanaged_jobs=draw_unmanaged_jobs(
                seed=seed,
                share=rng.choice((0, 0.3)),
                num_gpus=cluster.num_gpus,
                hours=1,
                mean_duration_s=300,
                most_gpus=2,
            ),
            failures=rng.choice((None, Failures(mtbf_s=1500, repair_s=rng.choice((0, 50, 300))))),
            checkpoint_interval_s=rng.choice((None, 30, 100)),
            adaptive_share=rng.choice((0.5, 1.0)),
            rigid_first=rng.random() < 0.5,
            interference=rng.choice((0, 0.3)),
            seed=seed,
        )
        chosen = make_policy(policy, objective=rng.choice(_OBJECTIVES), declared=True)
        result = simulate(jobs, made, chosen, cluster, rules=rules)
        for job in result.jobs:
            assert job.finished_s is not None
            assert job.progress == pytest.approx(150.25)
            assert 0 < job.lost_gpu_seconds < job.gpu_seconds
            assert (job.lost_progress > 0) <= (job.num_failures > 0)
        for record in result.rounds:
            assert record.gpus_used + record.gpus_unmanaged <= record.gpus_up


class Watched:
    """A policy that must not touch jobs whose reallocation is under way."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self.choose_batch, self.resizes = policy.choose_batch, policy.resizes
        self.num_in_flight = 0

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        held = {job.job.name: job.allocation for job in jobs if job.in_flight and job.allocation}
        given = self._policy.allocate(now_s, jobs, cluster)
        assert {name: given.get(name) for name in held} == held
        self.num_in_flight += len(held)
        return given


@pytest.mark.parametrize("policy", ["pollux", "sia"])
def test_that_jobs_are_not_moved_before_their_first_step(
    policy: str, made: Mapping[str, Application]
) -> None:
    """With plain requeues, a round each 20 s, and a submission in each."""
    watched = Watched(make_policy(policy, objective="generalized-mean", declared=False))
    jobs = [made_job(f"j{index}", at_s=20.0 * index) for index in range(12)]
    cluster = Cluster(num_nodes=2, interval_s=20)
    simulate(jobs, made, watched, cluster, rules=slurm_rules(delays=Delays(requeue_s=121)))
    assert watched.num_in_flight > 20


@pytest.mark.parametrize(
    "policy", [name for name in POLICIES if name not in {"genetic", "external", *SHARING}]
)
def test_that_a_job_waits_while_others_own_all_gpus(policy: str, made: Mapping[str, Application]) -> None:
    """All GPUs are free again at the round at 240 s."""
    rules = slurm_rules(unmanaged_jobs=(UnmanagedJob(submitted_s=0, duration_s=130, num_gpus=4),))
    chosen = make_policy(policy, objective="generalized-mean", declared=False)
    (job,) = simulate([made_job("a")], made, chosen, Cluster(num_nodes=1), rules=rules).jobs
    assert job.first_started_s == 240 + 15


def test_that_the_papers_search_runs_two_jobs_side_by_side(made: Mapping[str, Application]) -> None:
    chosen = make_policy("genetic", objective="generalized-mean", declared=False)
    jobs = [made_job("a"), made_job("b")]
    result = simulate(jobs, made, chosen, Cluster(num_nodes=1, interval_s=120))
    assert max(len(record.allocations) for record in result.rounds) == 2
