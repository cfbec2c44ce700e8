"""accelerate's loop, moved to other numbers of replicas: the same steps, rates, weights and evaluations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.huggingface import accelerate_scripts as scripts
from tests.torch.ranks import run_ranks, start
from tests.torch.training.test_resume import EXACT, ROUNDED, assert_same_training

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_that_moves_in_mid_epoch_under_accumulation_change_nothing(tmp_path: Path, precision: str) -> None:
    # 70 examples in batches of 16, at most 4 a micro-batch: neither 3 replicas nor the last 6 divide evenly.
    options = {"mixed_precision": precision, "clip": 1.0}
    reference = run_ranks(tmp_path, 1, _train, None, 3, None, options)[0]
    directory = tmp_path / "job"
    for restart, (replicas, stop_after) in enumerate([(1, 3), (3, 7)]):
        run = start(tmp_path, replicas, _train, str(directory), 3, stop_after, options, restart_count=restart)
        assert run.wait() == [143] * replicas, run.output()
    results = run_ranks(tmp_path, 2, _train, str(directory), 3, None, options, restart_count=2)
    assert reference["num_steps"] == 15
    assert reference["rates"] == pytest.approx([0.05 / (1 + step) for step in range(15)])
    for rank, result in enumerate(results):
        assert result["world"] == [2, rank]
        assert result["rates"] == pytest.approx(reference["rates"])
        assert result["evaluated"] == reference["evaluated"] == list(range(22))
        assert_same_training(result, reference, tolerance=ROUNDED if precision == "bf16" else EXACT)


def _train(directory: str | None, num_epochs: int, stop_after: int | None, options: dict) -> dict:
    return scripts.train(directory, num_epochs, stop_after, **options)
