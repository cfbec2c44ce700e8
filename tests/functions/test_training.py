"""A training function: it joins its replicas as a script does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pollux_slurm

pytestmark = pytest.mark.torch


def train(num_epochs: int) -> dict[str, Any]:
    from tests.torch import scripts

    result = scripts.train(None, num_epochs, 16)
    return {key: result[key] for key in ("steps", "run_number", "num_steps")}


def test_that_a_submitted_function_trains_on_all_replicas_and_goes_on_from_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.torch import scripts

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    first = pollux_slurm.submit(train, 1, cluster="local", min_gpus=2, checkpoint_dir="job")
    assert first.result(240)["num_steps"] == 5
    assert "no process of this run has called" not in first.stderr()
    longer = pollux_slurm.submit(train, 2, cluster="local", checkpoint_dir="job")
    result = longer.result(240)
    assert (result["run_number"], result["num_steps"]) == (1, 10)
    used = [index for indices in result["steps"].values() for index in indices]
    assert sorted(used) == sorted([*range(scripts.NUM_EXAMPLES)] * 2)
