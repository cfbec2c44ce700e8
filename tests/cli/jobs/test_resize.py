"""`pollux resize` as typed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.jobs.test_run import PLAIN, pollux
from tests.launch.run.resizable import ResizableRun, runs
from tests.waiting import is_gone

__all__ = ["runs"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument 'NUMBER'"),
        (["0"], "NUMBER"),
        (["two"], "NUMBER"),
        (["2", "--leave", "1;2"], "--leave 1;2: write the ranks of replicas, such as 0,2"),
        (["2", "--leave="], "--leave : write the ranks"),
        (["2", "--leave", "9" * 5000], "write the ranks"),
        (["2", "--timeout=-1"], "--timeout"),
        (["2"], "pollux run --in-place -- python train.py"),
        (["2", "--run", "1"], "no training on this machine can be resized"),
    ],
)
def test_that_an_error_is_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    done = pollux("resize", *words, environ={"TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_that_it_prints_what_was_done(runs: list[ResizableRun], tmp_path: Path) -> None:
    runs.append(ResizableRun(tmp_path, count=2))
    runs[0].pid("0")
    done = pollux("resize", "1", "--leave", "0", environ={"TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "1 process, after 0.50 s without a step\n",
        "",
    )
    done = pollux("resize", "1", "--leave", "0", environ={"TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pollux: the processes go on as they were: all replicas were to leave")


def test_that_ctrl_c_withdraws_the_request(runs: list[ResizableRun], tmp_path: Path) -> None:
    runs.append(ResizableRun(tmp_path, "if joins: time.sleep(1000)\n", count=1))
    asking = subprocess.Popen(
        [sys.executable, "-m", "pollux_slurm", "resize", "2"],
        env={**PLAIN, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    newcomer = runs[0].pid("1")
    asking.send_signal(signal.SIGINT)
    assert asking.communicate(timeout=300)[1] == "pollux: the processes go on as they were: interrupted\n"
    assert asking.returncode == 130
    assert runs[0].end() == ["outcome 0 False 1"]
    assert is_gone(newcomer)
