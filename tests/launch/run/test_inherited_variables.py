"""What a job has from the job that submitted it, and what is its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pollux_slurm.agent.environment.rank_environments import rank_environments
from pollux_slurm.launch.run.inherited_variables import (
    with_own_restart_count,
    without_other_jobs_variables,
    without_step_of_submitter,
)
from pollux_slurm.slurm.commands.runner import CommandRunner
from tests.agent.environment.test_layout import UNEVEN

INHERITED = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "MINE": "x"}


@pytest.mark.parametrize(
    ("title", "is_own"),
    [
        ("slurmstepd: [12.batch]\0", False),
        ("slurmstepd: [StepId=12.batch]\0", False),
        ("slurmstepd: [12.0]    ", True),
        ("containerd-shim\0", True),  # nothing is known: the variables count
    ],
)
def test_that_only_a_batch_script_loses_the_variables_of_a_step(
    tmp_path: Path, title: str, is_own: bool
) -> None:
    for pid, parent, name in ((os.getpid(), 40, "python\0"), (40, 30, "bash (x) \0"), (30, 1, title)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(name.encode())
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (na) me) S {parent} 1 1 0\n")
    kept = without_step_of_submitter(INHERITED, proc=tmp_path)
    assert kept == (INHERITED if is_own else {"SLURM_JOB_ID": "12", "MINE": "x"})


@pytest.mark.parametrize(
    ("squeue", "given", "own"),
    [
        ("echo 12 12 N/A RUNNING 42 1 0 0", "3", None),  # that of the job that submitted it
        ("echo 12 12 N/A RUNNING 42 1 0 2", "3", "2"),
        ("echo 12 12 N/A RUNNING 42 1 0 3", "3", "3"),
        ("echo 'slurm_load_jobs error: timed out' >&2; exit 1", "3", "3"),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", "3", "3"),
        ("touch asked; exit 1", None, None),
    ],
)
def test_that_the_restart_count_is_slurms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squeue: str, given: str | None, own: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
    (tmp_path / "squeue").chmod(0o755)
    runner = CommandRunner(environ={"PATH": "/usr/bin:/bin"}, bin_dir=tmp_path)
    environ = {"SLURM_JOB_ID": "12"} | ({} if given is None else {"SLURM_RESTART_COUNT": given})
    found = with_own_restart_count(environ, runner)
    assert found == {"SLURM_JOB_ID": "12"} | ({} if own is None else {"SLURM_RESTART_COUNT": own})
    assert not (tmp_path / "asked").exists()


def test_that_a_job_submitted_by_rank_0_does_not_log_to_its_run(tmp_path: Path) -> None:
    environ = {"POLLUX_CHECKPOINT_DIR": str(tmp_path), "POLLUX_JOB_ID": "1", "SLURM_JOB_ID": "1"}
    rank_0 = rank_environments(UNEVEN, 0, environ)[0]
    inherited = without_other_jobs_variables({**rank_0, "SLURM_JOB_ID": "2", "WANDB_PROJECT": "p"})
    assert not {"WANDB_RUN_ID", "WANDB_RESUME", "TENSORBOARD_LOGGING_DIR"} & set(inherited)
    assert "POLLUX_TRACKER_VARIABLES" not in inherited
    assert inherited["WANDB_PROJECT"] == "p"
