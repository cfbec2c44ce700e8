"""The examples as a user runs them: whole scripts, to their accuracy, stopped and resumed."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.common import Device

pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TIMEOUT_S = 600.0


# A script that gets SIGTERM as soon as it has printed its third epoch: from outside it may come too late.
STOPPED = """
import builtins, os, runpy, signal, sys
print_before = print
def print_and_stop(*words, **options):
    print_before(*words, **options)
    if str(words[0]).startswith("epoch 2:"):
        os.kill(os.getpid(), signal.SIGTERM)
builtins.print = print_and_stop
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def start(
    example: str, *options: str, directory: Path | None = None, is_stopped: bool = False
) -> subprocess.Popen[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("POLLUX_", "SLURM_"))}
    if directory is not None:
        env["POLLUX_CHECKPOINT_DIR"] = str(directory)
    script = ["-c", STOPPED] if is_stopped else []
    command = [sys.executable, "-W", "error", *script, str(EXAMPLES / example / "train.py"), *options]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return process.returncode, output


def result_of(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


# tests/e2e/test_whole_way.py trains it to its accuracy over moves, and counts its examples.
@pytest.mark.full
def test_that_digits_reaches_its_accuracy_over_a_stop_and_counts_each_example_once(tmp_path: Path) -> None:
    options = ("--audit", f"--result={tmp_path / 'result.json'}")
    code, output = finish(start("digits", *options, directory=tmp_path / "job", is_stopped=True))
    assert code == 143, output
    code, output = finish(start("digits", *options, directory=tmp_path / "job"))
    assert code == 0, output
    assert "EMULATED" not in output
    result = result_of(tmp_path / "result.json")
    assert result["accuracy"] >= 0.95
    assert (result["epochs"], result["runs"], result["restarts"]) == (15, [1, 1], 1)
    assert [(epoch["min"], epoch["max"]) for epoch in result["audit"]] == [(1, 1)] * 15


@pytest.mark.full
def test_that_charlm_learns_and_an_accuracy_missed_is_a_failure(tmp_path: Path) -> None:
    options = ("--epochs=1", "--audit", f"--result={tmp_path / 'result.json'}", "--emulate-device=0.001,0")
    code, output = finish(start("charlm", *options, "--target-accuracy=0.9"))
    assert code == 1, output
    assert "device time is EMULATED" in output
    result = result_of(tmp_path / "result.json")
    # Always guessing a blank gives 0.2.
    assert result["accuracy"] > 0.25
    assert result["audit"] == [{"epoch": 0, "min": 1, "max": 1}]


@pytest.mark.parametrize("times", ["1", "a,b", "-1,0", "nan,0", "1e9,0", "1,2,3"])
def test_that_senseless_device_times_are_refused(times: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        Device(times)
