"""With a batch that grows: the rate of each step and its schedule, over a stop, in Trainer and Accelerate."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import TrainerCallback

import pollux_slurm.torch as pt
from pollux_slurm.huggingface import PolluxAccelerator, PolluxTrainer
from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.scaling_rules import LinearScale
from tests.huggingface.test_accelerator import reset
from tests.huggingface.trainer_scripts import make_arguments
from tests.torch.single_replica import current_session, joined, propose

pytestmark = pytest.mark.torch

INITIAL, NUM_EXAMPLES, NUM_EPOCHS, STOP_AFTER = 16, 70, 4, 6
# After so many steps the batch grows to this.
GROWTH = {2: 2 * INITIAL, 8: 3 * INITIAL}


class Indices(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return NUM_EXAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"index": torch.tensor(index)}


class Falling(torch.nn.Module):
    """Its gradient is 1, so that a step takes its rate off the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.seen: list[int] = []

    def forward(self, index: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += index.tolist()
        return {"loss": (self.weight * torch.ones_like(index)).mean()}


class Record:
    """The examples and the effective rate of each step, also of those before a stop."""

    def __init__(self) -> None:
        self.steps: list[tuple[list[int], float]] = []

    def end_step(self, model: Falling, loader: pt.AdaptiveDataLoader, before: float) -> None:
        self.steps.append((model.seen, before - model.weight.item()))
        model.seen = []
        size = GROWTH.get(len(self.steps))
        if size is not None:
            choice = BatchChoice(
                global_batch_size=size, atomic_batch_size=4, accumulation_steps=size // 4 - 1
            )
            propose(current_session(), loader, choice)
        if len(self.steps) == STOP_AFTER:
            os.kill(os.getpid(), signal.SIGTERM)


def optimizer_and_schedule(model: Falling) -> tuple[Any, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda batches: 0.9**batches)


class EachStep(TrainerCallback):
    def __init__(self, record: Record, model: Falling) -> None:
        self.record, self.model = record, model
        self.trainer: Any = None

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.before = self.model.weight.item()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.record.end_step(self.model, self.trainer.steps.loader, self.before)


def train_by_trainer(record: Record, output: Path) -> None:
    model = Falling()
    callback = EachStep(record, model)
    callback.trainer = PolluxTrainer(
        model,
        make_arguments(
            str(output), num_train_epochs=NUM_EPOCHS, remove_unused_columns=False, max_grad_norm=0.0
        ),
        train_dataset=Indices(),
        optimizers=optimizer_and_schedule(model),
        callbacks=[callback],
        max_batch_size=64,
        scaling_rule=LinearScale(),
    )
    callback.trainer.train()


def train_by_accelerate(record: Record, output: Path) -> None:
    del output
    accelerator = PolluxAccelerator(
        cpu=True, gradient_accumulation_steps=4, max_batch_size=64, scaling_rule=LinearScale()
    )
    plain = Falling()
    optimizer, scheduler = optimizer_and_schedule(plain)
    loader = DataLoader(Indices(), batch_size=4, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(plain, optimizer, loader, scheduler)
    for _ in pt.remaining_epochs_until(NUM_EPOCHS):
        for batch in loader:
            with accelerator.accumulate(model):
                before = plain.weight.item()
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                record.end_step(plain, loader, before)


@pytest.mark.parametrize("train", [train_by_trainer, train_by_accelerate])
def test_that_rates_and_schedules_are_right_at_each_step_where_the_batch_grows(
    tmp_path: Path, train: Callable[[Record, Path], None]
) -> None:
    record = Record()
    reset()
    with joined(tmp_path / "job"), pytest.raises(SystemExit) as stopped:
        train(record, tmp_path)
    assert stopped.value.code == 143
    assert len(record.steps) == STOP_AFTER
    reset()
    with joined(tmp_path / "job"):
        train(record, tmp_path)
    sizes, epoch, num_epochs, num_batches = [], list[int](), 0, 0
    for examples, rate in record.steps:
        sizes.append(len(examples))
        # The rule's factor, and what the schedule makes of the batches of the initial size before.
        chosen = INITIAL * max([1] + [size // INITIAL for step, size in GROWTH.items() if len(sizes) > step])
        assert rate == pytest.approx(chosen / INITIAL * 0.9**num_batches, rel=1e-9)
        epoch += examples
        num_batches = 5 * num_epochs + -(-len(epoch) // INITIAL)
        if len(epoch) == NUM_EXAMPLES:
            assert sorted(epoch) == list(range(NUM_EXAMPLES))
            num_epochs, epoch = num_epochs + 1, []
    assert num_epochs == NUM_EPOCHS
    assert sizes == [16, 16, 32, 6, 32, 32, 6, 32, 38, 48, 22]
