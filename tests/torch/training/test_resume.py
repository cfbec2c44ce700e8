"""The same result from any number of replicas and any restarts, with real processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch import scripts
from tests.torch.ranks import run_ranks, start
from tests.waiting import wait_until

pytestmark = pytest.mark.torch


# Relative for losses, absolute for weights (of about 1). Sums in another order make the difference; under
# bfloat16 each replica's gradient is rounded to 8 bits (0.4 %) besides, before they are added.
EXACT = (1e-4, 1e-5)
ROUNDED = (2e-2, 2e-2)


def assert_same_training(
    result: dict[str, Any], reference: dict[str, Any], *, tolerance: tuple[float, float] = EXACT
) -> None:
    relative, absolute = tolerance
    assert result["num_steps"] == reference["num_steps"]
    assert {key: sorted(value) for key, value in result["steps"].items()} == {
        key: sorted(value) for key, value in reference["steps"].items()
    }
    for name, weight in reference["weights"].items():
        torch.testing.assert_close(result["weights"][name], weight, rtol=relative, atol=absolute)
    assert result["losses"] == pytest.approx(reference["losses"], rel=relative)
    assert result["lr"] == pytest.approx(reference["lr"])
    for (epoch, loss, count), (epoch_0, loss_0, count_0) in zip(
        result["history"], reference["history"][-len(result["history"]) :], strict=True
    ):
        assert (epoch, count) == (epoch_0, count_0)
        assert loss == pytest.approx(loss_0, rel=relative)


@pytest.mark.parametrize("kind", ["sgd", "adam", "bfloat16"])
def test_that_stopping_and_resuming_at_other_sizes_changes_nothing(tmp_path: Path, kind: str) -> None:
    # 70 examples in batches of 16: neither 3 nor the last batch of 6 divide evenly.
    reference = run_ranks(tmp_path, 1, scripts.train, None, 4, 16, None, kind)[0]
    directory = tmp_path / "checkpoints-of-the-job"
    for restart, (replicas, stop_after) in enumerate([(1, 3), (3, 7), (2, 4)]):
        run = start(
            tmp_path, replicas, scripts.train, str(directory), 4, 16, stop_after, kind, restart_count=restart
        )
        assert run.wait() == [143] * replicas, run.output()
    results = run_ranks(tmp_path, 4, scripts.train, str(directory), 4, 16, None, kind, restart_count=3)
    for result in results:
        assert result["run_number"] == 3
        assert_same_training(result, reference, tolerance=ROUNDED if kind == "bfloat16" else EXACT)


def test_that_data_loading_workers_outlive_the_sigterm_that_asks_for_a_checkpoint(tmp_path: Path) -> None:
    reference = run_ranks(tmp_path, 1, scripts.train, None, 2, 16)[0]
    directory = tmp_path / "checkpoints-of-the-job"
    arguments = (str(directory), 2, 16, None, "sgd", None, None, 1)
    run = start(tmp_path, 2, scripts.train, *arguments, 0.0, 7)
    wait_until(lambda: "step 7" in run.output(), timeout_s=120, what="the seventh step")
    run.terminate()
    assert run.wait() == [143, 143], run.output()
    assert "killed by signal" not in run.output()
    stopped = [line for line in run.output().splitlines() if "stopped by SIGTERM" in line]
    assert len(stopped) == 1
    place = r"(in epoch \d( at example \d+)?|after \d epochs?)"
    assert re.fullmatch(
        f"pollux: the job is stopped by SIGTERM, {place}: its checkpoint is written", stopped[0]
    )
    for result in run_ranks(tmp_path, 2, scripts.train, *arguments, restart_count=1):
        assert_same_training(result, reference)
