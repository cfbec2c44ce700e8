"""The summary of a simulation."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.simulator import Cluster, WorkloadJob, simulate
from pollux_slurm.simulator.policies import make_policy
from pollux_slurm.simulator.results.summary import RunOutcome, make_outcome
from tests.simulator.builders import made_application, made_job


def outcome(tmp_path: Path, *jobs: WorkloadJob, cluster: Cluster | None = None) -> RunOutcome:
    policy = make_policy("tiresias", objective="generalized-mean", declared=False)
    made = {"made": made_application(tmp_path)}
    result = simulate(jobs, made, policy, cluster or Cluster(num_nodes=1, gpus_per_node=1))
    return make_outcome(result, policy="tiresias", objective=None, workload="w", wall_s=0.5)


def test_that_jobs_are_recorded_from_submission_to_end(tmp_path: Path) -> None:
    """One GPU: a from 60 s, 30 s of start, 150 s; it is seen to have ended at 300 s, when b starts."""
    found = outcome(tmp_path, made_job("a", at_s=5), made_job("b", at_s=10))
    a, b = found.jobs
    assert (a.started_s, a.finished_s, a.completion_s) == (60, 240, 235)
    assert (b.started_s, b.finished_s, b.completion_s) == (300, 480, 470)
    assert (b.num_restarts, b.gpu_seconds, b.lost_gpu_seconds) == (0, 180, 30)
    assert (a.gpu_changes, b.gpu_changes) == (((60.0, 1),), ((300.0, 1),))
    assert a.alone_s == 55 + 30 + 300, "half a GPU is its share"
    assert a.rho == pytest.approx(235 / 385)


def test_that_the_summary_adds_up(tmp_path: Path) -> None:
    summary = outcome(tmp_path, made_job("a", at_s=5), made_job("b", at_s=10)).summary
    assert summary.jobs == {"a": 235, "b": 470}
    assert (summary.avg_jct_s, summary.p50_jct_s, summary.makespan_s) == (352.5, 352.5, 475)
    assert summary.p90_jct_s == pytest.approx(235 + 0.9 * 235)
    assert summary.gpu_hours == pytest.approx(360 / 3600)
    assert summary.gpu_hours_lost == pytest.approx(60 / 3600)
    assert summary.restart_share == pytest.approx(1 / 6)
    assert (summary.num_jobs, summary.restarts_per_job) == (2, 0)


def test_that_goodput_is_in_one_gpu_equivalents(tmp_path: Path) -> None:
    """A round half lost to the start, two of training at a step a second, one for the last quarter step."""
    found = outcome(tmp_path, made_job("a"))
    made = [record.goodput for record in found.rounds]
    assert made == pytest.approx([rate * 150 / 150.25 for rate in (0.5, 1, 1, 0.25 / 60)])
    assert [record.gpus_used for record in found.rounds] == [1, 1, 1, 1]
    assert found.summary.avg_goodput == pytest.approx(sum(made) / 4)


def test_that_accounts_are_summarised_separately(tmp_path: Path) -> None:
    jobs = [made_job("a", at_s=5), made_job("b", at_s=10), made_job("c", at_s=15)]
    named = [
        WorkloadJob(
            name=job.name,
            submitted_s=job.submitted_s,
            application=job.application,
            num_replicas=job.num_replicas,
            batch_size=job.batch_size,
            account=account,
        )
        for job, account in zip(jobs, ("x", "y", "y"), strict=True)
    ]
    found = outcome(tmp_path, *named)
    accounts = found.summary.accounts
    assert (accounts["x"].num_jobs, accounts["y"].num_jobs) == (1, 2)
    rho = {job.name: job.rho for job in found.jobs}
    assert accounts["y"].rho_worst == max(rho["b"] or 0, rho["c"] or 0) == found.summary.rho_worst
    assert set(accounts) == {"x", "y"}
