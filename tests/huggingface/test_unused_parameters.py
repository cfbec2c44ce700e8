"""Layers that a batch does not use stay as transformers' own Trainer leaves them, also under accumulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset
from transformers import Trainer, TrainingArguments

from pollux_slurm.huggingface import PolluxTrainer
from tests.torch.single_replica import joined

pytestmark = pytest.mark.torch


class Heads(torch.nn.Module):
    """Two heads: the second rests, but is decayed by an optimizer that finds zeros for its gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.resting = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.used(inputs)
        return {"loss": (outputs - labels).square().mean(), "logits": outputs}


def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
    return {"inputs": torch.stack([row[0] for row in rows]), "labels": torch.stack([row[1] for row in rows])}


def weights(kind: type[Trainer], output: Path) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(32, 4, generator=generator), torch.randn(32, 1, generator=generator))
    network = Heads()
    arguments = TrainingArguments(
        output_dir=str(output),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=3,
        learning_rate=0.05,
        weight_decay=0.1,
        max_grad_norm=0.5,
        train_sampling_strategy="sequential",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    kind(model=network, args=arguments, train_dataset=data, data_collator=collate).train()
    return [parameter.detach().clone() for parameter in network.parameters()]


def test_that_a_resting_head_is_not_decayed_where_the_trainer_accumulates(tmp_path: Path) -> None:
    wanted = weights(Trainer, tmp_path)
    with joined():
        found = weights(PolluxTrainer, tmp_path)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
