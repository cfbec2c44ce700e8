"""Processor time of steps under Hugging Face's Trainer and Accelerate, alone and adaptive, in one process.

    python -m benchmarks.huggingface_overhead [--rounds 7] [--width 640]

A plain and an adaptive training make one step in turn, so that a busy machine slows both. Of the ratios of
such pairs the median is taken at each place in the period of the noise scale's measurements, and the mean of
these medians printed. A step takes about 50 ms at any width, with fewer parameters for more examples at a
smaller one.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import threading
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

# In the first 32 steps the gradient noise is measured each time, later in two consecutive ones of 16.
NUM_STEPS, NUM_SKIPPED, PERIOD = 104, 40, 16


def batch_size(width: int) -> int:
    """Return the examples of a step that takes about 50 ms."""
    return 400 * 640**2 // width**2


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, width: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(NUM_STEPS * batch_size(width), 64, generator=generator)

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


class Turns:
    """Lets two trainings, each in a thread, make one step in turn, and takes the time of each step."""

    def __init__(self) -> None:
        self.turns = [threading.Semaphore(0), threading.Semaphore(0)]
        self.steps_s: list[list[float]] = [[], []]
        self._began_s = 0.0

    def end_step(self, number: int) -> None:
        self.steps_s[number].append(time.process_time() - self._began_s)
        self.turns[1 - number].release()
        self.turns[number].acquire()
        self._began_s = time.process_time()

    def run(self, trainings: list[Callable[[], object]]) -> list[float]:
        """Run both; return the ratios of the second one's time to the first one's, by step."""

        def one(number: int) -> None:
            self.turns[number].acquire()
            trainings[number]()
            self.turns[1 - number].release()

        threads = [threading.Thread(target=one, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        self.turns[0].release()
        for thread in threads:
            thread.join()
        pairs = zip(*(steps_s[NUM_SKIPPED:NUM_STEPS] for steps_s in self.steps_s), strict=True)
        return [adaptive_s / plain_s for plain_s, adaptive_s in pairs]


class EndOfStep(TrainerCallback):
    def __init__(self, turns: Turns, number: int) -> None:
        self._turns, self._number = turns, number

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._turns.end_step(self._number)


def make_trainer(kind: type[Trainer], width: int, turns: Turns, number: int) -> Callable[[], object]:
    arguments = TrainingArguments(
        tempfile.gettempdir(),
        num_train_epochs=1,
        per_device_train_batch_size=batch_size(width),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=10_000,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
    )
    callbacks = [EndOfStep(turns, number)]
    return kind(Network(width), arguments, train_dataset=Rows(width), callbacks=callbacks).train


def make_loop(kind: type[Accelerator], width: int, turns: Turns, number: int) -> Callable[[], object]:
    accelerator = kind(cpu=True)
    model = Network(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader = DataLoader(Rows(width), batch_size=batch_size(width), shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    def train() -> None:
        for _ in range(1) if kind is Accelerator else pt.remaining_epochs_until(1):
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(**batch)["loss"])
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                turns.end_step(number)

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=640)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    logging.getLogger("pollux_slurm").addHandler(logging.NullHandler())
    for name, make, plain, adaptive in (
        ("Trainer", make_trainer, Trainer, PolluxTrainer),
        ("Accelerate", make_loop, Accelerator, PolluxAccelerator),
    ):
        ratios: list[list[float]] = [[] for _ in range(PERIOD)]
        alone_s: list[float] = []
        for _ in range(options.rounds):
            turns = Turns()
            pt.init_process_group(checkpoint_interval_s=None, environ={})
            try:
                kinds: list[Any] = [plain, adaptive]
                made = [make(kind, options.width, turns, number) for number, kind in enumerate(kinds)]
                for step, ratio in enumerate(turns.run(made)):
                    ratios[step % PERIOD].append(ratio)
            finally:
                session = current_session()
                set_session(None)
                session.close()
                AcceleratorState._reset_state(reset_partial_state=True)
                GradientState._reset_state()
            alone_s += turns.steps_s[0][NUM_SKIPPED:]
        medians = [100 * (statistics.median(one) - 1) for one in ratios]
        print(
            f"{name}: {1000 * statistics.median(alone_s):.1f} ms of processor time a step alone, adaptive "
            f"{statistics.fmean(medians):+.1f} % ({statistics.median(medians):+.1f} % in most steps, "
            f"{max(medians):+.1f} % where the noise is measured)",
            flush=True,
        )


if __name__ == "__main__":
    main()
