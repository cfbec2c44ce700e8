"""What one user's job can do to another's, with two real users on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.agent.environment.token import new_token
from pollux_slurm.errors import UnknownJobError
from pollux_slurm.model import JobTerms
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.slurm.commands.command_client import CommandClient
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.store import open_store
from pollux_slurm.store.agent_api.token_hashes import hash_token
from tests.cli.inside import pollux
from tests.people import SLEEP, User, two_users
from tests.store.builders import at, report
from tests.waiting import cancel_all, wait_until


@pytest.fixture(scope="module")
def users(sandbox: Sandbox) -> Iterator[tuple[User, User]]:
    with two_users(sandbox.env) as made:
        yield made


def submit(user: User, comment: str) -> str:
    done = user.run(
        "sbatch", "--parsable", "--output=/dev/null", "--requeue", "--gpus=1", "--cpus-per-gpu=1",
        "--mem-per-gpu=100", f"--comment={comment}", stdin=SLEEP,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_that_a_copied_comment_takes_nothing_from_its_owner(
    sandbox: Sandbox,
    users: tuple[User, User],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Alice reads the Comment of Bob's job, and submits it as it is and with her own number in it."""
    alice, bob = users
    slurm = CommandClient(sandbox.runner())
    for name, value in sandbox.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("POLLUX_DAEMON_METRICS_LISTEN", "off")
    url = f"sqlite:///{tmp_path}/pollux.db"
    token = new_token(bob.user_id)
    sha256 = hash_token(token)
    jobs: list[str] = []
    try:
        bobs = bob.submit("--gpus=1", token=token)
        read = alice.run("squeue", "--noheader", f"--jobs={bobs}", "--format=%k")
        assert sha256 in read.stdout, "Comments are public"
        verbatim = submit(alice, read.stdout.strip())
        own = JobTerms(token_sha256=sha256, user_id=alice.user_id, min_gpus=1, max_gpus=4)
        renamed = submit(alice, encode_comment("", own))
        jobs += [bobs, verbatim, renamed]
        wait_until(
            lambda: all((job := slurm.read_job(one)) and job.allocation for one in jobs),
            timeout_s=120,
            what="the jobs to run",
        )
        store = open_store(url, create=True)
        try:
            assert pollux("daemon", "--once", "--shadow", "--store", url).returncode == 0
            assert f"job {verbatim}: not registered: its token is another user's" in caplog.text
            registered = {one.slurm_job_id: one.user_name for one in store.jobs.active()}
            assert registered == {bobs: bob.name, renamed: alice.name}
            store.agent.report(token, report(1), at=at(0))
            assert store.jobs.get(bobs).run is not None
            assert store.jobs.get(renamed).run is None
            with pytest.raises(UnknownJobError):
                store.jobs.get(verbatim)
        finally:
            store.close()
        reason = f"its token is another user's: its Comment has user id {bob.user_id}, Slurm has"
        assert (
            f"job {verbatim} is not adaptive: {reason} {alice.user_id}\n"
            in pollux("status", "--store", url).stdout
        )
        for command in ("status", "explain"):
            assert (
                f"job {verbatim} (running) is not adaptive: {reason}"
                in pollux(command, verbatim, "--store", url).stdout
            )
    finally:
        cancel_all(slurm, jobs)
