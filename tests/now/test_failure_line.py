"""The line of a failed job's log with which `pollux explain` begins."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pollux_slurm.launch.run.crash_report import HAS_FAILED
from pollux_slurm.model import JobState
from pollux_slurm.now.explained import Explained
from pollux_slurm.now.explained_text import lines
from pollux_slurm.now.failure_line import line_in_log, missing_folder
from pollux_slurm.now.jobs import JobNow
from pollux_slurm.store.contract.interface import DecidedJob
from tests.daemon.builders import record
from tests.store.builders import decision_of
from tests.waiting import wait_until

LINE = "job 7 has failed. First was rank 1, with ValueError: no (train.py, line 3); its output is above"


def test_that_the_newest_line_about_the_job_is_found_at_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "slurm-7.out"
    log.write_text(
        "x\n" * 50_000
        + f"pollux: {LINE.replace('rank 1', 'rank 0')}\npollux: job 71 has failed. First was rank 5\n"
        + f"pollux: {LINE}\nslurmstepd: error: *** JOB 7 CANCELLED\n"
    )
    assert line_in_log(log, "7") == LINE


def test_that_a_job_whose_log_has_no_folder_has_failed_for_that(tmp_path: Path) -> None:
    # As 22.05.8 shows one.
    shown = f"""JobId=7 JobName=x
   JobState=FAILED Reason=JobLaunchFailure Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:53
   StdErr={tmp_path}/logs/7.log
   StdIn=/dev/null
   StdOut={tmp_path}/logs/7.log
"""
    assert missing_folder(shown, "7") == (
        f"job 7 has failed at its start: Slurm cannot open its log {tmp_path}/logs/7.log, since there is no "
        f"folder {tmp_path}/logs; make it, and submit the job again: mkdir -p {tmp_path}/logs"
    )
    failed_itself = shown.replace("0:53", "1:0").replace("JobLaunchFailure", "NonZeroExitCode")
    assert missing_folder(failed_itself, "7") is None
    (tmp_path / "logs").mkdir()
    assert missing_folder(shown, "7") is None


def test_that_a_log_that_this_user_may_not_look_for_is_not_called_missing(tmp_path: Path) -> None:
    shown = f"JobId=7\n   Reason=JobLaunchFailure\n   StdErr={tmp_path}/{'x' * 300}/7.log\n"
    assert missing_folder(shown, "7") is None


def test_that_blanks_in_what_the_owner_chose_cost_no_more_than_other_characters(tmp_path: Path) -> None:
    # With a cost that grows with the square of the length, this takes an hour.
    newlines, tabs, blanks = (text * 1_000_000 for text in ("\n", "\t", " "))
    shown = f"""JobId=7 Reason=JobLaunchFailure
   Comment={newlines}
   StdErr={tmp_path}/logs/7{tabs}x
   StdOut={tmp_path}/logs/7.log{blanks}
"""
    assert missing_folder(shown, "7") is not None


def test_that_other_logs_have_no_such_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("the script says: pollux: job 7 has failed. First was rank 2\n")
    assert line_in_log(tmp_path / "log", "7") is None
    assert line_in_log(tmp_path / "missing", "7") is None
    assert line_in_log(tmp_path, "7") is None
    os.mkfifo(tmp_path / "fifo")
    assert line_in_log(tmp_path / "fifo", "7") is None


def test_that_nothing_but_a_file_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's job may name any path as its log: to open a watchdog, or a tape, is to start it."""
    opened: list[int] = []
    open_file = os.open

    def noted(path: str, flags: int) -> int:
        opened.append(flags)
        return open_file(path, flags)

    monkeypatch.setattr(os, "open", noted)
    os.mkfifo(tmp_path / "fifo")
    assert line_in_log(tmp_path / "fifo", "7") is None
    assert opened
    assert all(flags & os.O_PATH for flags in opened)


def test_that_a_file_that_has_no_bytes_by_its_size_is_not_read() -> None:
    """Such are those of /proc: a read of the kernel's messages waits for one, and takes it from others."""
    words = {"X": f"\npollux: job 7 {HAS_FAILED} on n0"}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=words) as other:
        content = Path(f"/proc/{other.pid}/environ")
        # The kernel shows none for a moment while a program begins.
        wait_until(lambda: HAS_FAILED in content.read_text(), timeout_s=60, what="its environment")
        assert line_in_log(content, "7") is None


def test_that_a_failed_job_is_explained_by_its_failure_and_not_by_predictions() -> None:
    decision = decision_of([7])
    decided = DecidedJob(
        objective="osdi21",
        solver=decision.solver,
        fitness=decision.fitness,
        upper_bound=decision.upper_bound,
        gap=decision.gap,
        timed_out=decision.timed_out,
        gpu_prices=decision.gpu_prices,
        job=decision.jobs[0],
        excluded_reason=None,
        explanation="job 7: n7:3+m7:1",
    )
    known = Explained(
        job_id="7",
        explanation=decided.explanation,
        decided=decided,
        job=JobNow(record=record("7", state=JobState.FAILED)),
        is_last=True,
        failure=LINE,
    )
    found = lines(known)
    assert found[:2] == [LINE, "job 7 is over: it failed"]
    unknown = lines(replace(known, failure=None))
    assert unknown[0] == found[1]
    assert [line for line in unknown if "the last line of its log" in line]
    assert not [line for line in found if "not more" in line or "predicted" in line]
