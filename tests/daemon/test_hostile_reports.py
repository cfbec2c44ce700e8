"""A poisonous report of one job does not stop the others' rounds: real stores, the real policy."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.errors import ReportRefusedError
from pollux_slurm.model import BatchChoice, BatchLimits, GoodputModel, GradientStatistics, JobState
from pollux_slurm.model import ThroughputParameters as Theta
from pollux_slurm.policy import decide
from pollux_slurm.store import open_agent_store, open_store
from pollux_slurm.store.contract.interface import AgentStore, CheckpointConfirmation, Report
from pollux_slurm.store.maintenance.administration import init_store
from tests.daemon.harness import Harness
from tests.store.builders import report
from tests.store.postgres import postgres_of_test
from tests.store.untrusted_client import BAD_REPORT, raw_report

THETAS = [
    Theta(alpha_g=1e6, beta_g=1e6, alpha_n=1e6, beta_n=1e6, alpha_l=1e6, beta_l=1e6, gamma=10.0),
    Theta(alpha_g=0.0, beta_g=1e-9, alpha_n=0.0, beta_n=0.0, alpha_l=0.0, beta_l=0.0, gamma=1.0),
    Theta(alpha_g=1e-9, beta_g=5e-324, alpha_n=5e-324, beta_n=1e-300, alpha_l=5e-324, beta_l=1e6, gamma=10.0),
    Theta(alpha_g=1e-9, beta_g=0.0, alpha_n=0.0, beta_n=0.0, alpha_l=1e6, beta_l=0.0, gamma=10.0),
]
STATISTICS = [
    None,
    GradientStatistics(sqr=0.0, var=0.0),
    GradientStatistics(sqr=5e-324, var=1e30, noise_low=0.0, noise_high=1e30),
    GradientStatistics(sqr=1e30, var=5e-324, noise_low=5e-324, noise_high=5e-324),
]
LIMITS = [
    BatchLimits(initial_batch_size=1, max_batch_size=10**9, accumulation=True),
    BatchLimits(initial_batch_size=10**9, max_batch_size=10**9, min_atomic=10**9, max_atomic=10**9),
]
EXTREMES = [
    GoodputModel(
        limits=limits, statistics=statistics, throughput=theta, max_gpus_seen=10**6, max_nodes_seen=10**6
    )
    for limits, statistics, theta in itertools.product(LIMITS, STATISTICS, THETAS)
]
LARGEST: dict[str, Any] = {
    "batch": BatchChoice(global_batch_size=10**9, atomic_batch_size=10**9, accumulation_steps=10**9),
    "throughput": 1e12,
    "predicted_throughput": 1e-7,
    "step_time_s": 1e-6,
    "efficiency": 1e-9,
    "num_steps": 10**15,
    "num_examples": 10**15,
    "progress": 1e18,
    "epoch": 10**9,
    "total_epochs": 1,
    "first_step_s": 1e7,
    "restore_s": 1e7,
    "checkpoint": CheckpointConfirmation(request_id=2**63 - 1, blocked_s=1e7, size_bytes=2**60),
}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path / 'pollux.db'}"
        init_store(made)
        yield made
        return
    with postgres_of_test() as server:
        made = server.create_database("pollux")
        init_store(made)
        yield made


@pytest.fixture
def harness(url: str) -> Iterator[Harness]:
    """Return a harness with a job of an honest and one of a hostile user, both running and reporting."""
    with contextlib.closing(open_store(url)) as store:
        made = Harness(store)
        for user_id in (1000, 1001):
            made.submit(user_id=user_id)
        made.run_until(daemon_of(made), seconds=8)
        assert [made.job(job_id).state for job_id in made.agents] == [JobState.RUNNING] * 2
        yield made


@pytest.fixture
def client(url: str) -> Iterator[AgentStore]:
    with contextlib.closing(open_agent_store(url)) as store:
        yield store


def daemon_of(harness: Harness) -> Daemon:
    return harness.daemon(decide=decide)


def check_round(harness: Harness, daemon: Daemon) -> None:
    """Let the honest job report and a round pass, and check that it decided about both jobs."""
    honest, hostile = harness.agents
    harness.agents[honest].act()
    result = daemon.round()
    assert (result.skipped, result.num_jobs) == (None, 2)
    for job_id in (honest, hostile):
        assert harness.store.rounds.decision(job_id, result.round_id) is not None
    harness.clock.advance(4)


def extreme_reports() -> Iterator[Report]:
    """Yield what the hostile job reports: the extremes that the bounds let through, forwards and back."""
    sequence = itertools.count(1000)
    for model, more in zip(EXTREMES, itertools.cycle([LARGEST, {"num_steps": 0, "progress": 0.0}])):
        yield report(next(sequence), run_number=0, gpus_per_node=(1,), model=model, **more)


def test_that_rounds_go_on_beside_a_job_that_reports_extremes(harness: Harness, client: AgentStore) -> None:
    daemon = daemon_of(harness)
    hostile = list(harness.agents.values())[1]
    hostile.reports = False
    for sent in extreme_reports():
        client.report(hostile.token, sent, at=harness.clock())
        check_round(harness, daemon)
    assert harness.store.jobs.get(hostile.job_id).model == sent.model


def test_that_rounds_go_on_beside_a_job_whose_reports_are_refused(
    harness: Harness, client: AgentStore, url: str
) -> None:
    hostile = list(harness.agents.values())[1]
    known = harness.store.jobs.get(hostile.job_id)
    daemon = daemon_of(harness)
    hostile.reports = False
    bad: dict[str, Any] = {
        "throughput": math.inf,
        "progress": -1.0,
        "num_steps": 2**63,
        "step_time_s": math.nan,
    }
    for sequence, (name, value) in enumerate(bad.items(), start=1000):
        with pytest.raises(ReportRefusedError, match=name):
            client.report(
                hostile.token,
                report(sequence, run_number=0, gpus_per_node=(1,), **{name: value}),
                at=harness.clock(),
            )
        check_round(harness, daemon)
    if url.startswith("postgresql"):
        send_unchecked(url, hostile.token)
        check_round(harness, daemon)
    found = harness.store.jobs.get(hostile.job_id)
    assert (found.model, found.sample) == (known.model, known.sample)


def send_unchecked(url: str, token: str) -> None:
    """Send what no client of ours would send: the database refuses it alone."""
    contents: list[dict[str, Any]] = [
        {"gamma": 1e-300},
        {"alpha_g": 0.0, "beta_g": 0.0},
        {"grad_sqr": "NaN"},
        {"gpus_per_node": [2**40]},
        {"progress": 10**400},
        {"epoch": -(2**62)},
    ]
    with psycopg.connect(url, autocommit=True) as connection:
        for content in contents:
            message = raw_report(2000, **{"run_number": 0, "gpus_per_node": [1], **content})
            with pytest.raises(psycopg.Error) as refused:
                connection.execute("SELECT pollux_report(%s, %s)", (token, message))
            assert refused.value.sqlstate in BAD_REPORT
