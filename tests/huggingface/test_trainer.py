"""`PolluxTrainer` in one process: the same training as transformers' Trainer, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from pollux_slurm.huggingface import PolluxTrainer
from tests.huggingface import trainer_scripts as scripts
from tests.huggingface.test_accelerator import reset
from tests.torch.single_replica import joined

pytestmark = pytest.mark.torch


def assert_same(ours: dict[str, Any], plain: dict[str, Any]) -> None:
    for key in ("losses", "norms", "rates", "epochs", "global_step", "train_loss", "flos"):
        assert ours[key] == pytest.approx(plain[key], rel=1e-4), key
    for name, weight in plain["weights"].items():
        torch.testing.assert_close(ours["weights"][name], weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 4},
        {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3, "eval_strategy": "epoch"},
    ],
    ids=["epochs", "max_steps", "evaluations"],
)
def test_that_it_trains_as_trainer_does_in_one_process(tmp_path: Path, options: dict[str, Any]) -> None:
    plain = scripts.train_plainly(str(tmp_path), Trainer, **options)
    reset()
    with joined():
        ours = scripts.train_plainly(str(tmp_path), PolluxTrainer, **options)
    assert plain["global_step"] == options.get("max_steps", 8)
    assert_same(ours, plain)
