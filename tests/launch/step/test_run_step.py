"""When a wing's step counts as ended, with a fake srun."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pollux_slurm.agent.environment.layout import RunLayout
from pollux_slurm.launch.node.watched_processes import ExitStatus
from pollux_slurm.launch.step import run_step as module
from pollux_slurm.launch.step.run_step import PreparedJob, run_step
from pollux_slurm.slurm.commands.runner import CommandRunner


def run(
    folder: Path, *, ended_nodes: tuple[int, ...], restart_count: int | None, after: str = "true"
) -> tuple[ExitStatus, list[str]]:
    """Run a step of two nodes whose srun returns 0, though only some nodes' processes have ended.

    `after` is a command that follows, with the files of the nodes as its last words.
    """
    files = " ".join(f"{folder}/job.exit-{index}" for index in ended_nodes)
    srun = folder / "srun"
    srun.write_text(f"#!/bin/sh\n{f'touch {files}; {after} {files}' if files else 'true'}\n")
    srun.chmod(0o755)
    said: list[str] = []
    layout = RunLayout(
        nodes=(("n0", 1), ("n1", 1)),
        master_addr="127.0.0.1",
        master_port=1,
        secret="x",
        job_id="7",
        exit_file=folder / "job.exit",
        restart_count=restart_count,
    )
    job = PreparedJob(
        layout=layout,
        environ={"PATH": "/usr/bin:/bin"},
        runner=CommandRunner(environ={}, bin_dir=folder),
        connect=lambda: pytest.fail("Slurm is not asked"),  # type: ignore[arg-type, return-value]
        warn=said.append,
        all_nodes=True,
        port=socket.socket(),
    )
    with job.port:
        return run_step(["train"], job), said


def test_that_a_wing_has_ended_once_the_processes_of_all_its_nodes_have(tmp_path: Path) -> None:
    status, said = run(tmp_path, ended_nodes=(0, 1), restart_count=1)
    assert (status, said) == (ExitStatus(exit_code=0, failed_by_itself=False), [])
    assert not list(tmp_path.glob("job.exit*"))


@pytest.mark.parametrize("ended_nodes", [(), (1,)])
def test_that_a_wing_whose_srun_ends_without_its_processes_counts_as_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended_nodes: tuple[int, ...]
) -> None:
    monkeypatch.setattr(module, "_LATE_FILE_S", 0.0)
    status, said = run(tmp_path, ended_nodes=ended_nodes, restart_count=0)
    assert status == ExitStatus(exit_code=143, failed_by_itself=False)
    assert said == ["srun ended, and not all processes of job 7 did: they count as stopped"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
@pytest.mark.parametrize("after", ["chown 65534", "chmod 666", "chmod 777 $(dirname $0);:"])
def test_that_files_that_others_may_have_made_do_not_end_a_wing(tmp_path: Path, after: str) -> None:
    status, said = run(tmp_path, ended_nodes=(0, 1), restart_count=1, after=after)
    assert status == ExitStatus(exit_code=143, failed_by_itself=False)
    assert said == ["srun ended, and not all processes of job 7 did: they count as stopped"]


def test_that_a_job_without_wings_is_left_to_slurm(tmp_path: Path) -> None:
    status, said = run(tmp_path, ended_nodes=(), restart_count=None)
    assert (status.exit_code, said) == (0, [])
