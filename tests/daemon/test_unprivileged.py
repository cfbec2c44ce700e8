"""`pollux daemon` as an ordinary user, with real users: it moves only that user's jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pollux_slurm.errors import UnknownJobError
from pollux_slurm.model import JobState, SlurmJob
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.slurm.commands.command_client import CommandClient
from pollux_slurm.store import open_store
from tests.people import User, two_users
from tests.waiting import cancel_all, wait_until

TAKEN = (("n0", 4), ("n3", 8))


@pytest.fixture(scope="module")
def users(sandbox: Sandbox) -> Iterator[tuple[User, User]]:
    with two_users(sandbox.env) as made:
        yield made


def shown(slurm: CommandClient, job_id: str) -> SlurmJob:
    found = slurm.read_job(job_id)
    assert found is not None
    return found


def test_that_it_moves_only_its_own_users_jobs(sandbox: Sandbox, users: tuple[User, User]) -> None:
    """Both users' jobs are pending in shapes that fit nowhere; a user's daemon places only its user's job."""
    ada, bob = users
    slurm = CommandClient(sandbox.runner())
    url = f"sqlite:///{ada.home}/pollux.db"
    made = ada.pollux("db", "init", "--store", url)
    assert made.returncode == 0, made.stderr
    jobs: list[str] = []
    try:
        # Eight GPUs on one node are only on n3, which is taken, as is n0.
        running = [bob.submit(f"--gpus={gpus}", f"--nodelist={node}", token=node) for node, gpus in TAKEN]
        jobs += running
        for job_id in running:
            wait_until(
                lambda job_id=job_id: shown(slurm, job_id).state is JobState.RUNNING,  # type: ignore[misc]
                timeout_s=120,
                what="the other jobs to run",
            )
        mine = ada.submit("--gpus=8", "--nodes=1", token="ada")
        theirs = bob.submit("--gpus=8", "--nodes=1", token="bob")
        jobs += [mine, theirs]
        before = [shown(slurm, job_id) for job_id in (theirs, *running)]
        done = ada.pollux("daemon", "--once", "--store", url)
        assert done.returncode == 0, done.stderr
        assert f"decides for the jobs of {ada.name} only: it moves jobs" in done.stderr
        given = shown(slurm, mine)
        assert given.state is JobState.RUNNING, done.stderr
        assert 1 <= given.allocation.num_gpus <= 4
        assert not {"n0", "n3"} & {*given.allocation.nodes}, "what others hold is not there to give"
        after = [shown(slurm, job_id) for job_id in (theirs, *running)]
        for was, now in zip(before, after, strict=True):
            facts = (was.state, was.held, was.comment, was.requested_gpus, was.allocation, was.restart_count)
            assert facts == (
                now.state, now.held, now.comment, now.requested_gpus, now.allocation, now.restart_count,
            )  # fmt: skip
        store = open_store(url)
        try:
            assert [one.slurm_job_id for one in store.jobs.active()] == [mine]
            with pytest.raises(UnknownJobError):
                store.jobs.get(theirs)
        finally:
            store.close()
    finally:
        cancel_all(slurm, jobs)


def test_that_wanting_everybodys_jobs_without_the_right_is_refused_at_the_start(
    users: tuple[User, User],
) -> None:
    ada, _ = users
    config = ada.home / "pollux.toml"
    config.write_text(f'[store]\nurl = "sqlite:///{ada.home}/pollux.db"\n[daemon]\njobs = "all"\n')
    config.chmod(0o644)
    done = ada.pollux("daemon", "--once", "--config", str(config))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"{ada.name} is none of them" in done.stderr
    assert 'daemon.jobs = "own"' in done.stderr
