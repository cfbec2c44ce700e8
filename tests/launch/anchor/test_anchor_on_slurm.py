"""What an anchor does about a hold, wings that cannot start, and an upgrade, on a real Slurm."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pollux_slurm
from pollux_slurm.model import JobState
from tests.launch.submit_directory import SubmitDirectory
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm
BODY = f"#!/bin/bash\n{sys.executable} -m pollux_slurm run -- echo all done\n"
IN_PLACE = ("--in-place", "--gpus=1", "--mem-per-gpu=100", "--job-name=it", "train.sbatch")


def scontrol(at: SubmitDirectory, *words: str) -> None:
    done = at.run("scontrol", *words)
    assert done.returncode == 0, done.stderr


def waiting_wing(at: SubmitDirectory, columns: str) -> str:
    """Return what squeue shows of the wing that waits, if one does."""
    done = at.run("squeue", "--noheader", "--states=PENDING", "--name=it+0", f"--format={columns}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def takes_all_gpus(at: SubmitDirectory, seconds: int) -> str:
    done = at.run(
        *(
            "sbatch",
            "--parsable",
            "--nodes=2",
            "--gpus-per-node=4",
            "--mem-per-gpu=100",
            "--output=/dev/null",
        ),
        f"--wrap=sleep {seconds}",
    )
    assert done.returncode == 0, done.stderr
    at.jobs.append(done.stdout.strip())
    return at.jobs[-1]


def waits_for_gpus(at: SubmitDirectory, seconds: int) -> tuple[str, str]:
    """Submit a job in place whose wing waits for a job that has all GPUs; return that one first."""
    blocker = takes_all_gpus(at, seconds)
    at.wait(blocker, JobState.RUNNING)
    job_id = at.submit(*IN_PLACE, body=BODY)
    wait_until(lambda: waiting_wing(at, "%i"), timeout_s=120, what="its wing to wait")
    return blocker, job_id


def test_that_a_training_does_not_start_while_its_anchor_is_held(submit_dir: SubmitDirectory) -> None:
    at = submit_dir
    blocker, job_id = waits_for_gpus(at, 600)
    scontrol(at, "hold", job_id)
    wait_until(lambda: waiting_wing(at, "%Q") == "0", timeout_s=120, what="its wing to be held")
    # All GPUs are free for a moment, and a later job gets them.
    later = takes_all_gpus(at, 0)
    at.slurm.cancel(blocker)
    at.wait(later, JobState.COMPLETED)
    assert waiting_wing(at, "%Q") == "0"
    scontrol(at, "release", job_id)
    at.wait(job_id, JobState.COMPLETED)
    log = at.log()
    assert f"job {job_id} is held, and so is its wing " in log
    assert "all done" in log.splitlines()


@pytest.mark.full
def test_that_an_anchor_whose_wing_waits_leaves_a_node_that_is_drained(submit_dir: SubmitDirectory) -> None:
    """It looks at its node once a minute."""
    at = submit_dir
    blocker, job_id = waits_for_gpus(at, 900)
    node = batch_host(at, job_id)
    scontrol(at, "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    try:
        said = f"its wing waits, and its node {node} is drained: it goes back into the queue"
        wait_until(lambda: said in at.log(), timeout_s=200, what="it to leave its node")
        wait_until(lambda: batch_host(at, job_id) == "n/a", timeout_s=120, what="it to wait itself")
        assert waiting_wing(at, "%i") == ""
        scontrol(at, "update", f"JobId={job_id}", "StartTime=now")
        wait_until(lambda: waiting_wing(at, "%i"), timeout_s=120, what="its wing to wait elsewhere")
        assert batch_host(at, job_id) not in (node, "n/a")
        at.slurm.cancel(blocker)
        at.wait(job_id, JobState.COMPLETED)
    finally:
        scontrol(at, "update", f"NodeName={node}", "State=RESUME")


def batch_host(at: SubmitDirectory, job_id: str) -> str:
    return at.run("squeue", "--noheader", f"--jobs={job_id}", "--format=%B").stdout.strip()


def test_that_a_job_whose_wings_fail_before_they_start_it_fails(submit_dir: SubmitDirectory) -> None:
    at = submit_dir
    (at.folder / "wing.sbatch.j2").write_text("#!/bin/sh\necho no such file >&2\nexit 127\n")
    (at.folder / "pollux.toml").write_text(f'[templates]\ndir = "{at.folder}"\n')
    job_id = at.submit(*IN_PLACE, body=BODY, environ={"POLLUX_CONFIG": str(at.folder / "pollux.toml")})

    def is_over() -> bool:
        if waiting := waiting_wing(at, "%i"):
            # Else it begins two minutes later. It may have begun meanwhile.
            subprocess.run(
                ["scontrol", "update", f"JobId={waiting}", "StartTime=now"], env=at.environ, check=False
            )
        return at.job(job_id).state.is_over

    wait_until(is_over, timeout_s=300, what=f"it to end; its log: {at.log()}", every_s=1.0)
    job, log = at.job(job_id), at.log()
    assert (job.state, job.exit_code) == (JobState.FAILED, 1), log
    assert log.count("no such file") == 3
    assert "failed before their processes started" in log.splitlines()[-1]


def test_that_an_upgrade_that_moves_the_program_of_wings_stops_no_job(submit_dir: SubmitDirectory) -> None:
    at = submit_dir
    package = at.folder / "installed" / "pollux_slurm"
    shutil.copytree(Path(pollux_slurm.__file__).parent, package)
    for resources in ("templates", "sql"):
        shutil.copytree(Path(pollux_slurm.__file__).parents[1] / resources, package / resources)
    until_go = "sh -c 'until [ -e go ]; do sleep 0.1; done'"
    body = f"#!/bin/bash\n{sys.executable} -m pollux_slurm run -- {until_go}\n"
    job_id = at.submit(*IN_PLACE, body=body, environ={"PYTHONPATH": str(package.parent)})
    wait_until(lambda: "start 1 trains on" in at.log(), timeout_s=120, what="its first start")
    # The next release has it under another name.
    program, request = package / "launch/anchor/wing_program.py", package / "launch/submit/wing_request.py"
    program.rename(program.with_name("another_name.py"))
    request.write_text(request.read_text().replace("anchor.wing_program", "anchor.another_name"))
    (first,) = re.findall(r"start 1 trains on .* \(job (\d+)\)", at.log())
    at.slurm.cancel(first)
    wait_until(lambda: "start 2 of the training waits" in at.log(), timeout_s=120, what="its next start")
    (waiting,) = re.findall(r"start 2 of the training waits as job (\d+)", at.log())
    assert waiting_wing(at, "%i %r") == f"{waiting} BeginTime"
    (at.folder / "go").touch()
    scontrol(at, "update", f"JobId={waiting}", "StartTime=now")
    at.wait(job_id, JobState.COMPLETED)
    assert f"job {job_id}: pollux_slurm was upgraded: the new release goes on" in at.log()
