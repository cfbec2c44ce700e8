"""The example as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/trackers/train.py"


def test_that_the_example_trains_and_its_values_are_where_its_text_says(tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("POLLUX_", "SLURM_"))}
    options = ("--epochs=1", "--target-accuracy=0.1", "--audit", "--result=result.json")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), *options],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["global_step"] == 45
    assert result["audit"] == [{"epoch": 0, "min": 1, "max": 1}]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "runs/digits"))
    events.Reload()
    assert [value.step for value in events.Scalars("loss")] == [1, 10, 20, 30, 40]
    assert [value.step for value in events.Scalars("test_accuracy")] == [45]
