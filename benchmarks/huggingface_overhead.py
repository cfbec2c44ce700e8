"""Processor time of steps under Hugging Face's Trainer and Accelerate, alone and adaptive, in one process.

    python -m benchmarks.huggingface_overhead [--rounds 7] [--width 640]

Plain and adaptive trainings alternate, so that a busy machine slows both. Each round gives the ratio of the
two mean times; the median of these ratios is printed. A step takes about 50 ms.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

import pollux_slurm.torch as pt
from pollux_slurm.huggingface import PolluxAccelerator, PolluxTrainer
from pollux_slurm.torch.session.current_session import current_session, set_session

# In the first 32 steps the gradient noise is measured each time, later in every eighth.
NUM_STEPS, NUM_SKIPPED, BATCH = 104, 40, 400


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(NUM_STEPS * BATCH, 64, generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": self.inputs[index], "labels": self.inputs[index, :8]}


class Network(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, width), torch.nn.ReLU()]
        for _ in range(4):
            layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(width, 8))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.mse_loss(self.layers(inputs), labels)}


class Clock(TrainerCallback):
    """Takes the process's time at the end of each step."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.times_s.append(time.process_time())


def with_trainer(kind: type[Trainer], width: int) -> list[float]:
    clock = Clock()
    arguments = TrainingArguments(
        tempfile.gettempdir(),
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=10_000,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
    )
    kind(Network(width), arguments, train_dataset=Rows(), callbacks=[clock]).train()
    return clock.times_s


def with_accelerator(kind: type[Accelerator], width: int) -> list[float]:
    accelerator = kind(cpu=True)
    model = Network(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader = DataLoader(Rows(), batch_size=BATCH, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    times_s = []
    for _ in range(1) if kind is Accelerator else pt.remaining_epochs_until(1):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            times_s.append(time.process_time())
    return times_s


def step_s(train: Callable[..., list[float]], kind: Any, width: int) -> float:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    is_adaptive = kind in (PolluxTrainer, PolluxAccelerator)
    if is_adaptive:
        pt.init_process_group(checkpoint_interval_s=None, environ={})
    try:
        times_s = train(kind, width)
    finally:
        if is_adaptive:
            session = current_session()
            set_session(None)
            session.close()
    return (times_s[-1] - times_s[NUM_SKIPPED]) / (len(times_s) - 1 - NUM_SKIPPED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=640)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    logging.getLogger("pollux_slurm").addHandler(logging.NullHandler())
    for name, train, plain, adaptive in (
        ("Trainer", with_trainer, Trainer, PolluxTrainer),
        ("Accelerate", with_accelerator, Accelerator, PolluxAccelerator),
    ):
        ratios, alone_s = [], []
        for number in range(options.rounds):
            # Each is the first of a pair in turn.
            order = [plain, adaptive] if number % 2 == 0 else [adaptive, plain]
            taken = {kind: step_s(train, kind, options.width) for kind in order}
            ratios.append(taken[adaptive] / taken[plain])
            alone_s.append(taken[plain])
        print(
            f"{name}: {1000 * statistics.median(alone_s):.1f} ms of processor time a step alone, adaptive "
            f"{100 * (statistics.median(ratios) - 1):+.1f} % "
            f"({100 * (min(ratios) - 1):+.1f} to {100 * (max(ratios) - 1):+.1f} %)",
            flush=True,
        )


if __name__ == "__main__":
    main()
