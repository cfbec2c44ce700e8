"""`pollux resize` from Python: which run is meant, and what becomes of a request."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from pollux_slurm.agent.membership.resize_requests import ResizeRequests
from pollux_slurm.errors import LaunchError, UsageError
from pollux_slurm.launch.run.local_runs import find_local_run, resize_local_run
from tests.launch.run.resizable import ResizableRun, runs, stop

__all__ = ["runs"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_that_the_only_run_is_meant_or_the_one_that_is_named(home: Path) -> None:
    with pytest.raises(UsageError, match="no training on this machine can be resized"):
        find_local_run(None)
    folders = [home / "pollux-run-a", home / "pollux-run-b"]
    for folder in folders:
        folder.mkdir()
    first, second = map(ResizeRequests, folders)
    with first.announced(["python", "one.py"]):
        assert find_local_run(None).folder == first.folder
        assert find_local_run(os.getpid()).folder == first.folder
        with pytest.raises(
            UsageError, match=rf"no such run; there is --run {os.getpid()} \(python one\.py\)"
        ):
            find_local_run(1)
        with (
            second.announced(["python", "two.py"]),
            pytest.raises(UsageError, match=r"which run\? .*one\.py.*two\.py"),
        ):
            find_local_run(None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's link")
def test_that_another_user_s_link_to_a_run_is_no_second_run(home: Path) -> None:
    run, link = ResizeRequests(home / "pollux-run-a"), home / "pollux-run-b"
    run.folder.mkdir()
    link.symlink_to(run.folder)
    os.lchown(link, 65534, 65534)
    with run.announced(["python", "one.py"]):
        assert find_local_run(None).folder == run.folder


def test_that_what_a_killed_launcher_has_left_is_no_run(runs: list[ResizableRun], home: Path) -> None:
    runs.append(ResizableRun(home, count=1))
    runs[0].wait_for("run.json", folder=runs[0].folder)
    assert find_local_run(runs[0].process.pid).folder == runs[0].folder
    stop(runs[0].process.pid)
    assert (runs[0].folder / "run.json").exists()
    with pytest.raises(UsageError, match="no training on this machine can be resized"):
        find_local_run(None)


def test_that_a_request_is_carried_out_or_withdrawn_in_time(runs: list[ResizableRun], home: Path) -> None:
    runs.append(ResizableRun(home, "if rank == 2: time.sleep(1000)\n", count=1))
    run = runs[0]
    run.pid("0")
    assert resize_local_run(2, timeout_s=300) == "2 processes, after 0.50 s without a step"
    with pytest.raises(LaunchError, match="the processes go on as they were: not done within 0 s"):
        resize_local_run(3, timeout_s=0)
    assert not list(run.folder.glob("wanted-*"))
    with pytest.raises(LaunchError, match="the processes go on as they were: there is no replica 5"):
        resize_local_run(1, leaves=[5], timeout_s=300)
    assert run.end()[-1] == "outcome 0 False 2"


def test_that_who_waits_hears_of_the_end_of_the_run(runs: list[ResizableRun], home: Path) -> None:
    runs.append(ResizableRun(home, "if joins: os.kill(os.getppid(), 9)\n", count=1))
    runs[0].pid("0")
    with pytest.raises(LaunchError, match="the run has ended before it was done"):
        resize_local_run(2, timeout_s=300)
