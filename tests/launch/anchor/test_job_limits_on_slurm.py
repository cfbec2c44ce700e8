"""Jobs in place under limits on jobs and on time, from a real slurmdbd, enforced by a real slurmctld."""

from __future__ import annotations

import getpass
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.model import JobState
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.sandbox.files import NodeGroup
from pollux_slurm.slurm.commands.command_client import CommandClient
from pollux_slurm.slurm.parsing.comment_terms import decode_comment
from pollux_slurm.slurm.sbatch.request import time_limit_s
from tests.conftest import running_sandbox
from tests.slurm.accounting_site import accounting_of, missing_programs, sacctmgr
from tests.waiting import cancel_all, wait_until

MISSING = ", ".join(missing_programs())
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(MISSING), reason=f"no {MISSING}: apt install slurmdbd mariadb-server-core"),
]
ME = getpass.getuser()
SCRIPT = f"""#!/bin/bash
{sys.executable} -m pollux_slurm run -- sh -c 'sleep 3; echo all done'
"""


@pytest.fixture(scope="module")
def site(slurm_programs: None) -> Iterator[Sandbox]:
    """Two nodes of four GPUs, and an account for the user."""
    with running_sandbox(NodeGroup(num_nodes=2)) as box, accounting_of(box) as runner:
        sacctmgr(runner, "add", "account", "lab")
        sacctmgr(runner, "add", "user", ME, "account=lab")
        yield box


def limit(site: Sandbox, *limits: str) -> None:
    sacctmgr(site.runner(), "modify", "user", ME, "where", "account=lab", "set", *limits)


def submit(site: Sandbox, folder: Path, *more: str) -> tuple[str, str]:
    """Submit a job in place; return its number, and what was said on stderr."""
    environ = {**site.env, "HOME": str(folder), "PYTHONPATH": ":".join(sys.path)}
    options = (
        "--in-place",
        "--account=lab",
        "--gpus=1",
        "--mem-per-gpu=100",
        "--output=%j.log",
        "--parsable",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pollux_slurm", "sbatch", *options, *more],
        input=SCRIPT, env=environ, cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("name", ["MaxJobs", "MaxSubmitJobs", "GrpJobs"])
def test_that_a_job_moves_by_requeue_where_a_limit_has_no_room(
    site: Sandbox, tmp_path: Path, name: str
) -> None:
    slurm = CommandClient(site.runner())
    limit(site, f"{name}=2")
    job_id, said = submit(site, tmp_path)
    try:
        job = slurm.read_job(job_id)
        assert job is not None
        terms = decode_comment(job.comment)
        assert terms is not None
        assert not terms.in_place
        assert said.splitlines()[0] == (
            "pollux: the job moves by requeue, not in place: it takes 3 jobs at least, and "
            f"{name}=2 of {ME} in account lab leaves 2"
        )
    finally:
        limit(site, f"{name}=-1")
        cancel_all(slurm, [job_id])


@pytest.mark.parametrize(
    ("partition", "wall", "options", "minutes"),
    [
        ("MaxTime=60 DefaultTime=UNLIMITED", "-1", ("--time=30",), 60),
        ("MaxTime=60 DefaultTime=UNLIMITED", "-1", ("--time=60",), 60),
        ("MaxTime=UNLIMITED DefaultTime=20", "-1", (), 20 + 24 * 60),
        ("MaxTime=UNLIMITED DefaultTime=20", "45", (), 45),
    ],
)
def test_that_an_anchor_asks_for_no_more_time_than_it_may_have(
    site: Sandbox, tmp_path: Path, partition: str, wall: str, options: tuple[str, ...], minutes: int
) -> None:
    slurm, runner = CommandClient(site.runner()), site.runner()
    update = ("scontrol", "update", "PartitionName=main", *partition.split())
    assert runner.run(*update).exit_code == 0
    limit(site, f"MaxWall={wall}")
    job_id, _ = submit(site, tmp_path, *options)
    try:

        def state() -> JobState:
            found = slurm.read_job(job_id)
            assert found is not None
            return found.state

        wait_until(lambda: state() is not JobState.PENDING, timeout_s=300, what="it to start", every_s=0.2)
        answer = runner.run("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--Format=TimeLimit")
        assert time_limit_s(answer.stdout.strip()) == minutes * 60
    finally:
        limit(site, "MaxWall=-1")
        runner.run("scontrol", "update", "PartitionName=main", "MaxTime=UNLIMITED", "DefaultTime=UNLIMITED")
        cancel_all(slurm, [job_id])


@pytest.mark.full
def test_that_four_anchors_under_a_limit_of_four_jobs_all_complete(site: Sandbox, tmp_path: Path) -> None:
    slurm = CommandClient(site.runner())
    limit(site, "MaxJobs=4")
    jobs: list[str] = []
    try:
        jobs += [submit(site, tmp_path, "--hold")[0] for _ in range(4)]
        # At once: all four places are the anchors', and no wing can start.
        assert site.runner().run("scontrol", "release", ",".join(jobs)).exit_code == 0

        def states() -> list[JobState]:
            found = {job.job_id: job.state for job in slurm.snapshot().jobs}
            return [found[job_id] for job_id in jobs]

        wait_until(
            lambda: all(state.is_over for state in states()), timeout_s=900, what="all to end", every_s=2
        )
        logs = {job_id: (tmp_path / f"{job_id}.log").read_text() for job_id in jobs}
        assert states() == [JobState.COMPLETED] * 4, logs
        assert [log.count("all done") for log in logs.values()] == [1] * 4, logs
        assert 1 <= "".join(logs.values()).count("a limit on the number of jobs") <= 8, logs
    finally:
        limit(site, "MaxJobs=-1")
        cancel_all(slurm, jobs)
