"""The examples as a user runs them: whole scripts, moved, and with marked lines for what is adaptive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = pytest.mark.parametrize("example", ["accelerate", "trainer"])


def run(tmp_path: Path, *command: str) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("POLLUX_", "SLURM_"))}
    # A rehearsal's folder, too.
    env["TMPDIR"] = str(tmp_path)
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Some twelve seconds each; `test_trainer_moves.py` and `test_accelerator_moves.py` test what they show.
@pytest.mark.full
@pytest.mark.parametrize("example", ["accelerate", "trainer"])
def test_that_an_example_reaches_its_accuracy_and_counts_each_example_once(
    tmp_path: Path, example: str
) -> None:
    script = ROOT / "examples" / example / "train.py"
    options = ("--epochs=4", "--target-accuracy=0.8", "--audit", "--result=result.json")
    run(tmp_path, sys.executable, "-W", "error", str(script), *options)
    result = json.loads((tmp_path / "result.json").read_text())
    # 1,437 digits are 45 batches of 32.
    assert (result["epochs"], result["global_step"]) == (4, 4 * 45)
    assert result["audit"] == [{"epoch": epoch, "min": 1, "max": 1} for epoch in range(4)]


@pytest.mark.full
@EXAMPLES
def test_that_nothing_must_change_in_an_example_that_is_moved(tmp_path: Path, example: str) -> None:
    script = ROOT / "examples" / example / "train.py"
    command = [sys.executable, str(script), "--epochs=4", "--target-accuracy=0.3"]
    printed = run(
        tmp_path, sys.executable, "-m", "pollux_slurm", "rehearse", "--time", "10m", "--json", "--", *command
    )
    assert [one["kind"] for one in json.loads(printed)["findings"]] == ["requeue_only"]


@EXAMPLES
def test_that_every_line_that_makes_an_example_adaptive_is_marked(example: str) -> None:
    for line in (ROOT / "examples" / example / "train.py").read_text(encoding="utf-8").splitlines():
        is_adaptive = any(word in line for word in ("pollux_slurm", "Pollux", "pt.", "max_batch_size"))
        assert is_adaptive == line.endswith("# adaptive"), line
