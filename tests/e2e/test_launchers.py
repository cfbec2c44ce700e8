"""A submitted function, and training in a container, moved by the real daemon."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import pollux_slurm
from pollux_slurm.model import JobState
from tests.e2e.user_commands import DIGITS, UserCommands
from tests.launch.node.stand_in_container import needs_namespaces, write_container

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.torch, pytest.mark.full]
ARGUMENTS = ("--epochs=12", "--emulate-device=0.01,0.008", "--audit")


def train_digits(result: str) -> list[Any]:
    """Run the example as a function; what it returns is its audit."""
    import runpy

    sys.argv = ["train.py", *ARGUMENTS, f"--result={result}"]
    try:
        runpy.run_path(str(DIGITS / "train.py"), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    written = Path(result)
    return list(json.loads(written.read_text())["audit"]) if written.exists() else []


def assert_each_sample_once(audit: list[Any]) -> None:
    assert [(epoch["min"], epoch["max"]) for epoch in audit] == [(1, 1)] * 12


def test_that_a_submitted_function_is_moved_and_returns(
    user: UserCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in user.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(user.directory)
    user.start_daemon()
    job = pollux_slurm.submit(train_digits, str(user.directory / "result.json"), max_gpus=4)
    user.submitted.append(job.job_id)
    user.wait_confirmed(job.job_id, shrink=False)
    assert job.explain().startswith(f"job {job.job_id} ")
    assert_each_sample_once(job.result(timeout_s=300))
    assert f"pollux: job {job.job_id} goes on from the checkpoint of its run" in job.stderr()
    assert user.wait_over(job.job_id).state is JobState.COMPLETED
    record = job.record()
    assert record is not None
    assert record.num_restarts >= 1


@needs_namespaces
def test_that_training_in_a_container_is_moved_and_finishes_exactly(user: UserCommands) -> None:
    container = shlex.quote(str(write_container(user.directory)))
    user.start_daemon()
    result = user.directory / "result.json"
    command = shlex.join([sys.executable, str(DIGITS / "train.py"), *ARGUMENTS, f"--result={result}"])
    job_id = user.sbatch("--max-gpus=4", f"--wrap=pollux run --wrap-with {container} -- {command}")
    user.wait_confirmed(job_id, shrink=False)
    assert user.wait_over(job_id).state is JobState.COMPLETED, user.log()
    assert_each_sample_once(json.loads(result.read_text())["audit"])
