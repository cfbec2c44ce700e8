"""The whole way with a real PostgreSQL: the jobs' login may call seven functions only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from pollux_slurm.config import SlurmConfig
from pollux_slurm.daemon.enact import admin_orders
from pollux_slurm.model import JobState, ReallocationStep
from pollux_slurm.slurm import connect
from pollux_slurm.store import open_store
from pollux_slurm.store.maintenance.administration import add_login, init_store
from tests.e2e.user_commands import UserCommands
from tests.store.postgres import PostgresServer, postgres_of_test

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.torch]


def now() -> datetime:
    return datetime.now(timezone.utc)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres_of_test() as running:
        admin = running.create_database("pollux")
        init_store(admin)
        add_login(admin, "the_daemon", shared=False, connections=10, roles=("pollux_daemon",))
        add_login(admin, "jobs", shared=True, connections=10, roles=("pollux_agent",))
        yield running


@pytest.fixture
def user(server: PostgresServer, two_node_sandbox: dict[str, str], tmp_path: Path) -> Iterator[UserCommands]:
    url = server.url("pollux", login="the_daemon")
    made = UserCommands(
        directory=tmp_path,
        slurm=connect(SlurmConfig(), {**os.environ, **two_node_sandbox}),
        slurm_env=two_node_sandbox,
        store=open_store(url),
        store_url=url,
        jobs_url=server.url("pollux", login="jobs"),
    )
    yield made
    made.close()


def test_that_a_job_is_moved_and_finishes_though_the_database_stops_meanwhile(
    user: UserCommands, server: PostgresServer
) -> None:
    """Nothing that was acknowledged is lost, no step waits, and job and daemon continue when it is back."""
    user.start_daemon()
    # One GPU, so that the daemon moves it for no reason of its own.
    job_id = user.digits("moved", "--gpus=1", max_gpus=1, epochs=8, pass_s="0.01,0.006")
    user.wait(lambda: len(user.store.history.samples(job_id)) > 1, "a sample")
    before = user.store.history.samples(job_id)
    # A manual move: measurements on a busy machine must not decide here.
    pause = admin_orders.pause(user.store, job_id, by="an admin", drain=False, at=now())
    server.stop()
    try:
        log = user.directory / "daemon.log"
        user.wait(
            lambda: log.read_text().count("store") > 1,
            "the daemon to miss its store",
        )
        assert user.process is not None
        assert user.process.poll() is None, user.log()
        job = user.slurm.read_job(job_id)
        assert job is not None
        assert not job.state.is_over
    finally:
        server.start()
    paused = user.wait(lambda: user.ended(pause), "the pause")
    assert paused.step is ReallocationStep.CONFIRMED, paused
    admin_orders.resume(user.store, job_id, by="an admin", at=now())
    assert user.store.history.samples(job_id)[: len(before)] == before
    record = user.wait_over(job_id)
    assert record.state is JobState.COMPLETED, user.log()
    assert len(user.store.history.runs(job_id)) == 2
    result = json.loads((user.directory / "moved.json").read_text())
    assert [(epoch["min"], epoch["max"]) for epoch in result["audit"]] == [(1, 1)] * result["epochs"]
