"""The example as a user runs it: stopped and resumed, rehearsed, and its ordinary form."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.test_rehearse import rehearse

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "lightning" / "train.py"
# A script that gets SIGTERM as soon as it has printed its second epoch.
STOPPED = """
import builtins, os, runpy, signal, sys
print_before = print
def print_and_stop(*words, **options):
    print_before(*words, **options)
    if str(words[0]).startswith("epoch 1:"):
        os.kill(os.getpid(), signal.SIGTERM)
builtins.print = print_and_stop
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(directory: Path, *start: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("POLLUX_", "SLURM_"))}
    return subprocess.run(
        [
            *(sys.executable, *start, str(SCRIPT), "--epochs=4", "--target-accuracy=0.8", "--audit"),
            *("--result", str(directory / "result.json")),
        ],
        env={**env, "POLLUX_CHECKPOINT_DIR": str(directory / "job")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


# Its parts are tested one by one in `test_resume.py` and `test_adaptation.py`.
@pytest.mark.full
def test_that_the_example_goes_on_after_sigterm_with_one_log_and_each_example_once(tmp_path: Path) -> None:
    stopped = run(tmp_path, "-c", STOPPED)
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
    assert result["runs"] == [1, 1]
    assert all(epoch["min"] == epoch["max"] == 1 for epoch in result["audit"])
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["version_0"]


def test_that_the_example_without_its_marked_lines_is_a_script_of_lightnings() -> None:
    lines = SCRIPT.read_text().splitlines()
    marked = [line for line in lines if "# adaptive" in line]
    assert len(marked) == 2
    ordinary = "\n".join(line for line in lines if "# adaptive" not in line)
    ast.parse(ordinary)
    assert "PolluxStrategy" not in ordinary


@pytest.mark.full
def test_that_the_example_is_rehearsed_clean(tmp_path: Path) -> None:
    result = rehearse(tmp_path, SCRIPT, "--epochs=2", "--target-accuracy=0.2")
    assert [finding["kind"] for finding in result["findings"]] == ["requeue_only"]
