"""`pollux daemon` as an ordinary user, with real users: it moves that user's jobs and nobody else's."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pollux_slurm.errors import UnknownJobError
from pollux_slurm.model import JobState, JobTerms, SlurmJob
from pollux_slurm.slurm.commands import CommandsClient
from pollux_slurm.slurm.sandbox import Sandbox
from pollux_slurm.slurm.terms import encode_comment
from pollux_slurm.store import open_store
from pollux_slurm.store.tokens import hash_token
from tests.waiting import wait_until

TAKEN = (("n0", 4), ("n3", 8))
SLEEP = "#!/bin/sh\nwhile :; do sleep 0.2; done\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An account that was made for the test; `env` points its commands at the sandbox."""

    name: str
    user_id: int
    home: Path
    python: tuple[str, ...]
    env: dict[str, str]

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command as this user, in their home."""
        return subprocess.run(
            command, input=stdin, user=self.name, group=self.name, extra_groups=[], cwd=self.home,
            env=self.env, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def pollux(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(*self.python, "-m", "pollux_slurm", *arguments)

    def submit(self, *options: str, token: str) -> str:
        terms = JobTerms(token_sha256=hash_token(token), min_gpus=1, max_gpus=4)
        done = self.run(
            "sbatch", "--parsable", "--output=/dev/null", "--requeue", "--cpus-per-gpu=1",
            "--mem-per-gpu=100", f"--comment={encode_comment('', terms)}", *options, stdin=SLEEP,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def users(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[User, User]]:
    """Two real users with homes of their own, removed afterwards."""
    if os.geteuid() != 0 or shutil.which("useradd") is None or shutil.which("userdel") is None:
        pytest.skip("only root can make users for the test")
    made: list[User] = []
    names: list[str] = []
    try:
        for _ in range(2):
            name = f"pollux-{secrets.token_hex(4)}"
            subprocess.run(["useradd", "--no-create-home", "--user-group", name], check=True, timeout=60)
            names.append(name)
            home = Path("/tmp") / name
            home.mkdir(mode=0o700)
            entry = pwd.getpwnam(name)
            os.chown(home, entry.pw_uid, entry.pw_gid)
            env = {
                **sandbox.env,
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            user = User(name=name, user_id=entry.pw_uid, home=home, python=_python(name, env), env=env)
            made.append(user)
        yield made[0], made[1]
    finally:
        for name in names:
            subprocess.run(["userdel", name], check=False, timeout=60)
            shutil.rmtree(Path("/tmp") / name, ignore_errors=True)


def _python(name: str, env: dict[str, str]) -> tuple[str, ...]:
    """Return a Python that the user can run with this one's packages: this one may be in root's home."""
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, system):
        try:
            done = subprocess.run(
                [python, "-c", "import pollux_slurm.cli.app, scipy, sqlalchemy"],
                user=name, extra_groups=[], cwd="/", env=env, capture_output=True, timeout=120, check=False,
            )  # fmt: skip
        except OSError:
            continue
        if done.returncode == 0:
            return (python,)
    pytest.skip(f"no Python {sys.version_info.major}.{sys.version_info.minor} that another user can run")


def shown(slurm: CommandsClient, job_id: str) -> SlurmJob:
    found = slurm.read_job(job_id)
    assert found is not None
    return found


def test_that_it_moves_its_own_users_jobs_and_nobody_elses(
    sandbox: Sandbox, users: tuple[User, User]
) -> None:
    """Both wait with a shape that fits nowhere; the daemon of one gives theirs a place, and theirs only."""
    ada, bob = users
    slurm = CommandsClient(sandbox.runner())
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
                what="the neighbours to run",
            )
        mine = ada.submit("--gpus=8", "--nodes=1", token="ada")
        theirs = bob.submit("--gpus=8", "--nodes=1", token="bob")
        jobs += [mine, theirs]
        before = [shown(slurm, job_id) for job_id in (theirs, *running)]
        done = ada.pollux("daemon", "--once", "--store", url)
        assert done.returncode == 0, done.stderr
        assert f"moves the jobs of {ada.name} only" in done.stderr
        given = shown(slurm, mine)
        assert given.state is JobState.RUNNING, done.stderr
        assert 1 <= given.allocation.num_gpus <= 4
        assert not {"n0", "n3"} & {*given.allocation.nodes}, "what others hold is not there to give"
        after = [shown(slurm, job_id) for job_id in (theirs, *running)]
        for was, now in zip(before, after, strict=True):
            told = (was.state, was.held, was.comment, was.requested_gpus, was.allocation, was.restart_count)
            assert told == (
                now.state, now.held, now.comment, now.requested_gpus, now.allocation, now.restart_count,
            )  # fmt: skip
        store = open_store(url)
        try:
            assert [one.slurm_job_id for one in store.active_jobs()] == [mine]
            with pytest.raises(UnknownJobError):
                store.job(theirs)
        finally:
            store.close()
    finally:
        for job_id in jobs:
            slurm.cancel(job_id)
        wait_until(
            lambda: all(one.state.is_over for one in slurm.snapshot().jobs if one.job_id in jobs),
            timeout_s=120,
            what="the cancelled jobs to end",
        )


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
